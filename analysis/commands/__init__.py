"""The grokscope command: one file a command. The only folder that prints."""
