"""For `make mutants`: mutmut 3.8 reads a test's `_nodeid`, which pytest 9.2 no longer has."""


def pytest_itemcollected(item):
    item._nodeid = item.nodeid
