"""Taking jobs, holding their leases, running and settling them."""
