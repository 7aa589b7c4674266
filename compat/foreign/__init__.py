"""Other people's programs, whose own tests run unchanged on a broker of the pytest plug-in."""
