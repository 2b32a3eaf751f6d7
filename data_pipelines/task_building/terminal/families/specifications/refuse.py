"""How the programs of the solutions end on wrong input; the family fills in the status."""

REFUSE = """\
import sys


def refuse(reason):
    print(reason, file=sys.stderr)
    sys.exit(<<status>>)


"""
