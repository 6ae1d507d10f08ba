"""Where actors live: in this process, or in Ray."""
