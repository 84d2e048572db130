"""Which hosts there are: Consul, hosts.txt and data/."""
