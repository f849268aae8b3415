"""The command line of the service: one module for those who run one, one for those who use one."""
