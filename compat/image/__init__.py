"""The container image, built and run without Docker: buildah builds it on a base from debootstrap."""
