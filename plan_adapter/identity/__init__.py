"""Who answers: SSH signatures, one-time codes, and what an answer at a gate proves about its giver."""
