"""Kubernetes without containers: fabric8's mock of the API server, and a kubelet that runs pods as processes."""
