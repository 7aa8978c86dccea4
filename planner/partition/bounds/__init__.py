"""What no assignment undercuts, by arithmetic."""
