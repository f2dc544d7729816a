"""The methods GeoF is compared with, one file each, behind :mod:`geof.methods.interface`."""
