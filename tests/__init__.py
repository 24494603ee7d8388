"""The tests, laid out as the package is. In: the package. Out: passes and failures; helpers shared by rows stand
here.
"""
