"""Results of subject transforms, recorded from nats-server 2.15, for unit tests and the conformance suite."""

from __future__ import annotations

from typing import Final

# Source, destination, published and stored subject, as nats-server 2.15 stores it.
MAPPINGS: Final = (
    ("a.*.*", "b.{{wildcard(2)}}.{{wildcard(1)}}", "a.x.y", "b.y.x"),
    ("a.*.*", "b.{{Wildcard(2)}}.{{ wildcard ( 1 ) }}", "a.x.y", "b.y.x"),
    ("a.*.*", "b.$2.$1.$3x", "a.x.y", "b.y.x.$3x"),
    ("a.*.*", "b.$+1.$02", "a.x.y", "b.x.y"),
    ("a.*.*", "b.$0.{{wildcard(-1)}}", "a.x.y", "b.a.a"),
    ("a.*.*", "b.x{{wildcard(1)}}.{{wildcard(1)}", "a.x.y", "b.x{{wildcard(1)}}.{{wildcard(1)}"),
    ("a.*.*", "b.{{left(1,1)}}{{wildcard(2)}}", "a.x.y", "b.y"),
    ("a.*.*", "b.{{{left(2,1)}}}", "a.x.yz", "b.y"),
    ("a.*.*", "b.{{}}.$.$x", "a.x.y", "b.{{}}.$.$x"),
    ("a.*.*", "b.$1", "a.x", "a.x"),
    ("a.b", "c", "a.b", "c"),
    ("a.b", "c", "a.c", "a.c"),
    ("a.>", "b.>", "a.b.c.d", "b.b.c.d"),
    ("a.>", ">", "a.b.c", "b.c"),
    ("", "b.>", "a.b", "b.a.b"),
    (">", ">", "a.b", "a.b"),
    ("a.>", "", "a.b", "a.b"),
    ("a.*.>", "{{wildcard(1)}}.b.>", "a.x.y.z", "x.b.y.z"),
    ("a.*.*", "b.{{partition(10,1)}}", "a.hello.y", "b.3"),
    ("a.*.*", "b.{{partition(10,1,2)}}", "a.hello.world", "b.7"),
    ("a.*.*", "b.{{Partition(10, 2 ,  1)}}", "a.hello.world", "b.9"),
    ("a.*.*", "b.{{partition(10)}}", "a.hello.world", "b.6"),
    ("a.b", "b.{{partition(10)}}", "a.b", "b.2"),
    ("a.b", "b.{{partition(10,7)}}", "a.b", "b.2"),
    ("a.>", "b.{{partition(10)}}.>", "a.b.c", "b.1.b.c"),
    ("a.*.*", "b.{{partition(10,0)}}", "a.x.y", "b.0"),
    ("a.*.*", "b.{{partition(0,1)}}", "a.x.y", "b.0"),
    ("a.*.*", "b.{{partition(-7,1)}}", "a.x.y", "b.4245442695"),
    ("a.*.*", "b.{{partition(2147483647,1)}}", "a.x.y", "b.2097959048"),
    ("a.*", "b.{{partition(1000,1)}}", "a.日本", "b.721"),
    ("a.*", "b.{{random(1)}}.{{Random(0)}}", "a.x", "b.0.0"),
    ("a.b", "b.{{random(-1)}}", "a.b", "b.0"),
    ("a.*", "b.{{split(1,-)}}", "a.x-y-z", "b.x.y.z"),
    ("a.*", "b.{{split(1,-)}}", "a.-x--y-", "b.x.y"),
    ("a.*", "b.{{split(1,-)}}", "a.xyz", "b.xyz"),
    ("a.*", "b.{{Split(1, --)}}", "a.x---y-z", "b.x.-y-z"),
    ("a.*", "b.{{split(1,)}}", "a.xyé", "b.x.y.é"),
    ("a.*", "b.{{split(1,é)}}", "a.xéyéz", "b.x.y.z"),
    ("a.*", "b.{{split(1,*)}}", "a.x*y", "b.x.y"),
    ("a.*", "b.{{splitFromLeft(1,3)}}", "a.abcdefg", "b.abc.defg"),
    ("a.*", "b.{{splitfromleft(1,3)}}", "a.abc", "b.abc"),
    ("a.*", "b.{{SplitFromLeft(1,-3)}}", "a.abcdefg", "b.abcdefg"),
    ("a.*", "b.{{splitFromRight(1,3)}}", "a.abcdefg", "b.abcd.efg"),
    ("a.*", "b.{{splitfromright(1,3)}}", "a.abc", "b.abc"),
    ("a.*", "b.{{sliceFromLeft(1,3)}}", "a.abcdefgh", "b.abc.def.gh"),
    ("a.*", "b.{{slicefromleft(1,3)}}", "a.abcdef", "b.abc.def"),
    ("a.*", "b.{{sliceFromRight(1,3)}}", "a.abcdefgh", "b.ab.cde.fgh"),
    ("a.*", "b.{{slicefromright(1,3)}}", "a.abcdef", "b.abc.def"),
    ("a.*", "b.{{sliceFromLeft(1,2)}}", "a.éé", "b.é.é"),
    ("a.*", "b.{{Left(1,3)}}", "a.abcdefg", "b.abc"),
    ("a.*", "b.{{left(1,3)}}", "a.ab", "b.ab"),
    ("a.*", "b.{{Right(1,3)}}", "a.abcdefg", "b.efg"),
    ("a.*", "b.{{right(1,-1)}}", "a.abcdefg", "b.abcdefg"),
)

# The same for results that are invalid subjects, which a NATS server stores nevertheless.
FAITHFUL: Final = (
    ("a.*", "b.{{split(1,-)}}", "a.--x---y--", "b.x.y"),
    ("a.*", "b.{{split(1,-)}}", "a.--", "a.--"),
    ("a.*", "b.{{split(1,x)}}", "a.x>", "a.x>"),
    ("a.*", "b.{{left(1,1)}}", "a.*x", "a.*x"),
    ("a.*", "b.{{left(1,1)}}", "a.éa", "b.é"),
    ("a.*", "b.{{right(1,3)}}", "a.日本x", "b.x"),
    ("a.*", "b.{{sliceFromLeft(1,2)}}", "a.xéy", "b.xé.y"),
)

_INVALID: Final = "invalid mapping destination: "
_OUT_OF_RANGE: Final = _INVALID + "wildcard index out of range in "
_UNKNOWN: Final = _INVALID + "unknown function in "
_TOO_FEW: Final = _INVALID + "not enough arguments passed to the function in "
_TOO_MANY: Final = _INVALID + "too many arguments passed to the function in "
_WRONG: Final = _INVALID + "function argument is invalid or in the wrong format in "

# Source, destination and the error of the destination.
REFUSALS: Final = (
    ("a.*.*", "b.{{wildcard(3)}}", _OUT_OF_RANGE + "{{wildcard(3)}}: [3]"),
    ("a.*.*", "b.$3", _OUT_OF_RANGE + "$3: [3]"),
    ("a.b", "b.{{wildcard(1)}}", _OUT_OF_RANGE + "{{wildcard(1)}}"),
    ("a.>", "b.{{wildcard(1)}}.>", _OUT_OF_RANGE + "{{wildcard(1)}}: [1]"),
    ("a.*.*", "b.{{partition(10,3)}}", _OUT_OF_RANGE + "{{partition(10,3)}}: [3]"),
    ("a.*", "b.{{WILDCARD(1)}}", _UNKNOWN + "{{WILDCARD(1)}}"),
    ("a.*", "b.{{unknown(1)}}", _UNKNOWN + "{{unknown(1)}}"),
    ("a.*", "b.{{split-from-left(1,3)}}", _UNKNOWN + "{{split-from-left(1,3)}}"),
    ("a.*", "b.{{left(1,1}}", _UNKNOWN + "{{left(1,1}}"),
    ("a.*", "b.{{wildcard()}}", _TOO_FEW + "{{wildcard()}}"),
    ("a.*", "b.{{split(1)}}", _TOO_FEW + "{{split(1)}}"),
    ("a.*", "b.{{random(1,2)}}", _TOO_FEW + "{{random(1,2)}}"),
    ("a.*", "b.{{left(1)}}", _TOO_FEW + "{{left(1)}}"),
    ("a.*", "b.{{wildcard(1,2)}}", _TOO_MANY + "{{wildcard(1,2)}}"),
    ("a.*", "b.{{split(1,-,-)}}", _TOO_MANY + "{{split(1,-,-)}}"),
    ("a.*", "b.{{right(1,2,3)}}", _TOO_MANY + "{{right(1,2,3)}}"),
    ("a.*", "b.{{wildcard(x)}}", _WRONG + "{{wildcard(x)}}"),
    ("a.*", "b.{{wildcard(1)}}{{wildcard(1)}}", _WRONG + "{{wildcard(1)}}{{wildcard(1)}}"),
    ("a.*", "b.{{partition()}}", _WRONG + "{{partition()}}"),
    ("a.*", "b.{{partition(2147483648,1)}}", _WRONG + "{{partition(2147483648,1)}}"),
    ("a.*", "b.{{split(1,- )}}", _WRONG + "{{split(1,- )}}"),
    ("a.*", "b.{{random()}}", _WRONG + "{{random()}}"),
    ("a.*", "b.{{left(1,2147483648)}}", _WRONG + "{{left(1,2147483648)}}"),
    ("a.*", "b..$1", _INVALID + "invalid transform"),
    ("a.*", "b c.$1", _INVALID + "invalid transform"),
    ("a.*.>", "b.$1.>.c", _INVALID + "invalid transform in c"),
    ("a.*", "b.*", "invalid subject"),
    ("a.*", "b.>", "invalid subject"),
    ("a.>", "b", "invalid subject"),
    ("", "b", "invalid subject"),
)
