"""What both services need to be reached, and neither owns: who may talk to whom, messages of any size, shared memory;
and what their host has for them.

Imports neither service.

files          a certificate, its key and the authorities, read again whenever the files change
channels       connections that follow the files; server credentials that do
streams        the same for connections that are not gRPC's
addresses      host:port, read and written
listening      which addresses need mutual TLS
peers          who is at the other end of a call
tickets        leave to use one deployment, signed by the planner, checked by daemons alone
diagnosis      why a TLS connection fails, in words
unanswered     which failures say that nobody answered a call
authority      a small certificate authority, for those who have none
handlers       what interceptors do to a method's handler
request_sizes  bytes counted before a request is parsed
fields         fields of serialized messages, without parsing what is in them
tensor_fields  messages with tensors, without a copy of the tensors' bytes
pieces         large messages read and written piece by piece
large_answers  large answers serialized beside the event loop
metrics        numbers for Prometheus
misspelt       environment variables that were meant for a setting
host           which host a process is on, and which clock it reads
container      what a container may take of its host
buffers        several buffers in one sendmsg
ring           slots of shared memory between two processes of one host
door           what clients and workers of one host say to each other, and share
"""
