"""``skillreason ablate``: studies of many systems that differ in one setting each, trained and evaluated by one command."""
