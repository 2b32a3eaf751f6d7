"""Style sheets of slides: what breaks a rule, what stays, what does not parse."""

import pytest

from environments.slides.style import Refused, Style


@pytest.mark.parametrize(
    "rule, fault",
    [
        ("p{font-size:22px}", "font sizes"),
        ("p{font-size:16px}", "font sizes"),
        ("p{font-size:2em}", "outside the rules"),
        ("".join(f".a{n}{{font-size:{n}px}}" for n in range(20, 40, 4)), "font sizes"),
        ("".join(f".a{n}{{color:#00000{n}}}" for n in range(1, 8)), "7 colours"),
        ("p{color:#ff0000}", "glaring"),
        ("p{color:red}", "outside the rules"),
        ("p{background:linear-gradient(#fff,#000)}", "outside the rules"),
        ("p{border:1px solid red}", "outside the rules"),
        ("p{list-style-type:'text'}", "outside the rules"),
        ("p{letter-spacing:-20px}", "outside the rules"),
    ],
)
def test_faults_of_style(rule, fault):
    style = Style()
    style.sheet(rule)
    [found] = style.faults()
    assert fault in found


def test_harmless_style_stays_and_importance_goes():
    style = Style()
    rules = " Margin: 0 AUTO !important ; border:1px solid #ccc;width:calc(100% - 4px)"
    written = style.sheet(f"#a > .b:first-child,td:nth-child(2n+1){{{rules}}}")
    assert written.endswith("{margin:0 auto;border:1px solid #ccc;width:calc(100% - 4px)}")
    assert style.faults() == [] and style.colours == {"#cccccc"}


@pytest.mark.parametrize(
    "text", ["a{b", "a{b}", "}", "a{{}", "a{color:#fff}}", "a[b]{color:#fff}", "/*", "a{:b}"]
)
def test_style_that_does_not_parse(text):
    with pytest.raises(Refused):
        Style().sheet(text)
