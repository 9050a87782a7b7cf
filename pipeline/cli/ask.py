"""`gausscse ask A B`: what a model says of two sentences."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.config.load import load_name
from pipeline.utils.logs import log
from pipeline.utils.parser import MODEL, Parser


def main(arguments: Sequence[str]) -> None:
    """Answer for the two sentences of the command line."""
    parser = Parser(prog="gausscse ask", description="Say how two sentences relate: does A entail B?")
    parser.add_argument("a", metavar="A")
    parser.add_argument("b", metavar="B")
    parser.add_argument("--model", help=f"{MODEL}; default: the champion")
    options = parser.parse_args(arguments)
    uri = options.model or f"models:/{load_name()}@champion"
    from pipeline.registry.loading import load

    encoder = load(uri)
    if encoder.note:
        log.warning(encoder.note)
    encoded, reading = encoder.encode_counted([options.a, options.b])
    for line in reading.lines(encoder.longest):
        log.warning(f"of 2 sentences {line}")
    a, b = encoded[:1], encoded[1:]
    if encoder.relation_head is not None:
        (name,), chances = encoder.decide(a, b), encoder.relation(a, b)._asdict()
        print(f"{name}: {', '.join(f'{one} {100 * float(chance):.1f} %' for one, chance in chances.items())}")
        if name != max(chances, key=lambda one: float(chances[one])) and encoder.calibration is not None:
            # The threshold decides about entailment.
            score = float(encoder.score(a, b))
            print(f"because the score of entailment is {score:.3f} and its threshold {encoder.calibration.threshold:.3f}")
    elif encoder.calibration is not None:
        print("entailment" if bool(encoder.entails(a, b)) else "no entailment")
    print(f"similarity: sim(B‖A) {float(encoder.similarity(b, a)):.4f}, sim(A‖B) {float(encoder.similarity(a, b)):.4f}")
