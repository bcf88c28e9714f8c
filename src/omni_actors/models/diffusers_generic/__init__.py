"""Any diffusers pipeline of pictures that no family here serves step by step: request by request."""
