"""The ops on any device that compiles the portable kernel bodies; knows no vendor."""
