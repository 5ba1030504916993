"""`plan desk`: a small web application in which approvers answer gates."""
