"""The truth about every job: tables, and the few transactions that change them."""
