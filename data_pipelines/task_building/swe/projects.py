"""The projects whose fixes become tasks: permissive licences, pure Python, tests in the source distribution.

Each was tried. Checksums are of the source distributions on the package index. Jinja2 is held out as a whole.
"""

from data_pipelines.task_building.swe.project import Project, Release


def _releases(*lines: str) -> tuple[Release, ...]:
    """Of lines with a version and a SHA-256, the oldest first."""
    return tuple(Release(*line.split()) for line in lines)


_ALL = (
    Project(
        "sqlparse",
        "BSD-3-Clause",
        "sqlparse",
        _releases(
            "0.4.3 69ca804846bb114d2ec380e4360a8a340db83f0ccf3afceeb1404df028f57268",
            "0.4.4 d446183e84b8349fa3061f0fe7f06ca94ba65b426946ffebe6e3e8295332420c",
            "0.5.0 714d0a4932c059d16189f58ef5411ec2287a4360f17cdd0edd2d09d4c5087c93",
            "0.5.1 bb6b4df465655ef332548e24f08e205afc81b9ab86cb1c45657a7ff173a3a00e",
            "0.5.2 9e37b35e16d1cc652a2545f0997c1deb23ea28fa1f3eefe609eee3063c3b105f",
            "0.5.3 09f67787f56a0b16ecdbde1bfc7f5d9c3371ca683cfeaa8e6ff60b4807ec9272",
            "0.5.4 4396a7d3cf1cd679c1be976cf3dc6e0a51d0111e87787e7a8d780e7d5a998f9e",
            "0.5.5 e20d4a9b0b8585fdf63b10d30066c7c94c5d7a7ec47c889a2d83a3caa93ff28e",
            "0.6.0 113c35c75365ab9cc9c7231d68c6428fb11c085fc8e9eb1ad659b7ddbf6cd2b9",
            "0.6.1 ca722573f848ff2d30e40ea30f53a104b7dea7635ea9285891263eb2c58fb6e7",
        ),
        changelog="CHANGELOG",
    ),  # fmt: skip
    Project(
        "cachetools",
        "MIT",
        "src/cachetools",
        _releases(
            "7.3.2 43e5db663b58c4337a9959069d93f54dd2e065fdd0438a504cd1100fbeb48beb",
            "7.3.3 46e92905f580cb137c499b9ec6acd73d569c2c3542ddfeb286618685e55cb340",
            "8.0.0 5ed01bd676800d51f0025605e4fd8ad0891550513e7b0a4c3da478463764e5c3",
            "8.0.1 deb1d376d4d28c2f33f3e3058043b005e0af75c35c094bd54053e27d2906ad95",
            "8.0.2 30ac523adfc118b51d2b2e7bad8a0ddb31370dfe2700c7f10ca224f36ccf81e0",
        ),
        paths=("src",),
        changelog="CHANGELOG.rst",
    ),  # fmt: skip
    Project(
        "mistune",
        "BSD-3-Clause",
        "src/mistune",
        _releases(
            "3.3.1 7d2108b532850ab81d3e92a5566abe1168f4f27c0c9dbe914e02d1d06e2a0288",
            "3.3.2 e12ee4f1e74336e91aa1141e35f913b337c40bdf7c0cc49f21fb853a27e8b62f",
            "3.3.3 c4c6c0c840b8637a2e9b8b6d607eb7c8f00888bf14c754409bcd339e848c2477",
            "3.3.4 58b5c96d6fcb61190dfe5fae498d2b2065f99cf61e9649418fd54cf1ada86dfe",
            "3.4.0 2eaf7952af928ca8d33b779762effc1da517b62c6ad85ec8ca957e3b07b9782a",
        ),
        paths=("src", "."),
        changelog="docs/changes.rst",
        config="pyproject.toml",
        options=("--ignore-glob=tests/test_security*", "--ignore-glob=tests/*limits*"),
    ),  # fmt: skip
    Project(
        "markdown",
        "BSD-3-Clause",
        "markdown",
        _releases(
            "3.7 2ae2471477cfd02dbbf038d5d9bc226d40def84b4fe2986e49b59b6b472bbed2",
            "3.8 7df81e63f0df5c4b24b7d156eb81e4690595239b7d70937d0409f1b0de319c6f",
            "3.8.1 a2e2f01cead4828ee74ecca9623045f62216aef2212a7685d6eb9163f590b8c1",
            "3.8.2 247b9a70dd12e27f67431ce62523e675b866d254f900c4fe75ce3dda62237c45",
            "3.9 d2900fe1782bd33bdbbd56859defef70c2e78fc46668f8eb9df3128138f2cb6a",
        ),
        changelog="docs/changelog.md",
        options=("--ignore=tests/test_syntax/extensions/test_md_in_html.py", "--ignore=tests/test_apis.py"),
    ),  # fmt: skip
    Project(
        "marshmallow",
        "MIT",
        "src/marshmallow",
        _releases(
            "4.2.3 3e3fef6b3603721a25a723b8caedfa488369bddaf9bc03b40b9442c90aebd22b",
            "4.2.4 1ab9c798651b9048d127969d9423a0e47510e34100df1d3e24c9d5b6cdc26a86",
            "4.3.0 fb43c53b3fe240b8f6af37223d6ef1636f927ad9bea8ab323afad95dff090880",
            "4.3.1 fb6b8048af08d4ab061610d5b7d3696a7e4c95337dbda880edb9f95812cabc20",
            "4.4.0 9e6ffa8511012ca89732324c1c253efd7b4d35632dcbdf80aa793fe01804af3e",
        ),
        paths=("src", "."),
        requirements=("simplejson==3.20.2",),
        changelog="CHANGELOG.rst",
        config="pyproject.toml",
    ),  # fmt: skip
    Project(
        "xmltodict",
        "MIT",
        "xmltodict.py",
        _releases(
            "1.0.0 f50eb9020d28c673b40bbe3f43458ee165f0267c67f8ad8df0d70d9a4f3ac824",
            "1.0.1 43f06e35e03f0f3ce622b9bd5e9652570a923db2906d5d4b830b76eafcafddcb",
            "1.0.2 54306780b7c2175a3967cad1db92f218207e5bc1aba697d887807c0fb68b7649",
            "1.0.3 3bf1f49c7836df34cf6d9cc7e690c4351f7dfff2ab0b8a1988bba4a9b9474909",
            "1.0.4 6d94c9f834dd9e44514162799d344d815a3a4faec913717a9ecbfa5be1bb8e61",
        ),
    ),  # fmt: skip
    Project(
        "tabulate",
        "MIT",
        "tabulate.py",
        _releases(
            "0.8.6 5470cc6687a091c7042cee89b2946d9235fe9f6d49c193a4ae2ac7bf386737c8",
            "0.8.7 db2723a20d04bcda8522165c73eea7c300eda74e0ce852d9022e0159d7895007",
            "0.8.8 26f2589d80d332fefd2371d396863dedeb806f51b54bdb4b264579270b621e92",
            "0.8.9 eb1d13f25760052e8931f2ef80aaf6045a6cceb47514db8beab24cded16f13a7",
        ),
        tests=("test",),
        changelog="CHANGELOG",
    ),  # fmt: skip
    Project(
        "semver",
        "BSD-3-Clause",
        "src/semver",
        _releases(
            "3.0.3 8769a03a93507fecdf19b6eefb08d5e95b462504871a61e29e09798822888c94",
            "3.0.4 afc7d8c584a5ed0a11033af086e8af226a9c0b206f313e0301f8dd7b6b589602",
            "3.1.0 14bc073439513d7773662a338f4db9829cf16c12b74b9568e2d2689975fbd7fc",
            "3.1.1 149b26cabada6f63212f97e94505d21578cb1d280cf714827f328d5e70765fea",
            "3.1.2 bea193552413194252d33ff26ce0962b76669bd1c6fb17e8e203ac37f072feaf",
        ),
        paths=("src",),
        changelog="CHANGELOG.rst",
    ),  # fmt: skip
    Project(
        "simpleeval",
        "MIT",
        "simpleeval.py",
        _releases(
            "1.0.4 32df6dfd5ca09212a7d8b45625b7a2b6aba697ad061a7b0f30938d7d158227fe",
            "1.0.5 b6b7933fffe13a345ada9917f8579c72e7b8afcfb7f7759b18fdd068aaa60486",
            "1.0.6 3a5a743a4f17c53854648144ae41f73eb4f573438d039a59f42cc3172b336141",
            "1.0.7 1e10e5f9fec597814444e20c0892ed15162fa214c8a88f434b5b077cf2fef85b",
        ),
        tests=("test_simpleeval.py",),
    ),  # fmt: skip
    Project(
        "schema",
        "MIT",
        "schema.py",
        _releases(
            "0.7.4 fbb6a52eb2d9facf292f233adcc6008cffd94343c63ccac9a1cb1f3e6de1db17",
            "0.7.5 f06717112c61895cabc4707752b88716e8420a8819d71404501e114f91043197",
            "0.7.6 ce0186666940271e5faeb31b92c830aab6e7eb3f0d6feb88a107a76bba964ba7",
            "0.7.7 7da553abd2958a19dc2547c388cde53398b39196175a9be59ea1caf5ab0a1807",
        ),
        tests=("test_schema.py",),
    ),  # fmt: skip
    Project(
        "parso",
        "MIT",
        "parso",
        _releases(
            "0.8.3 8c07be290bb59f03588915921e29e8a50002acaf2cdc5fa0e0114f91709fafa0",
            "0.8.4 eb3a7b58240fb99099a345571deecc0f9540ea5f4dd2fe14c2a99d6b281ab92d",
            "0.8.5 034d7354a9a018bdce352f48b2a8a450f05e9d6ee85db84764e9b6bd96dafe5a",
            "0.8.6 2b9a0332696df97d454fa67b81618fd69c35a7b90327cbe6ba5c92d2c68a7bfd",
            "0.8.7 eaaac4c9fdd5e9e8852dc778d2d7405897ec510f2a298071453e5e3a07914bb1",
        ),
        tests=("test",),
        support=("conftest.py",),
        config="pytest.ini",
        changelog="CHANGELOG.rst",
    ),  # fmt: skip
    Project(
        "Jinja2",
        "BSD-3-Clause",
        "src/jinja2",
        _releases(
            "3.1.2 31351a702a408a9e7595a8fc6150fc3f43bb6bf7e319770cbc0db9df9437e852",
            "3.1.3 ac8bd6544d4bb2c9792bf3a159e80bba8fda7f07e81bc3aed565432d5925ba90",
            "3.1.4 4a3aee7acbbe7303aede8e9648d13b8bf88a429282aa6122a993f0ac800cb369",
            "3.1.5 8fefff8dc3034e27bb80d67c671eb8a9bc424c0ef4c0826edbff304cceff43bb",
            "3.1.6 0137fb05990d35f1275a587e9aee6d56da821fc83491a0fb838183be43f66d6d",
        ),
        paths=("src",),
        changelog="CHANGES.rst",
        requirements=("markupsafe==3.0.3",),
        options=("--ignore-glob=tests/test_async*",),
        heldout=True,
    ),  # fmt: skip
)
PROJECTS: dict[str, Project] = {project.name: project for project in _ALL}
