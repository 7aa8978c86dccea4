"""Mode optimal's searches, and what they find together."""
