"""What makes records trustworthy: the audit log, verification, exports, erasing and tombstones."""
