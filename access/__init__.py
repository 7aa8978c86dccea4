"""Who may talk to whom: what both services need for it, and neither owns. Imports neither.

files      a certificate, its key and the authorities, read again whenever the files change
channels   connections that follow the files; server credentials that do
listening  which addresses need mutual TLS
peers      who is at the other end of a call
diagnosis  why a TLS connection fails, in words
authority  a small certificate authority, for those who have none
"""
