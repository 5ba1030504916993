"""What belongs to this machine: settings, secrets, credentials, private files, processes and crash points."""
