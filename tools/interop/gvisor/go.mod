// gVisor is taken from the branch of its repository that is made for Go modules.
module atlas/interop/gvisor

go 1.26.3

require gvisor.dev/gvisor v0.0.0-20260701204157-69c2d17aea96

require (
	github.com/google/btree v1.1.2 // indirect
	golang.org/x/exp v0.0.0-20250711185948-6ae5c78190dc // indirect
	golang.org/x/sys v0.43.0 // indirect
	golang.org/x/time v0.15.0 // indirect
)
