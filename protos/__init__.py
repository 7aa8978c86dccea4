"""The wire contract that planner-server, stage-daemon and their clients share."""
