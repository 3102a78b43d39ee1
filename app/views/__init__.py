"""The dashboard's pages, one file each; app/dashboard.py has the table."""
