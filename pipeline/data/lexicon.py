"""Word lists of the generated NLI source. This is data only; the grammar is in `pipeline.data.generated`.

The labels depend on these properties of the lists:

* every leaf of a concept entails each general phrase of the concept, and the general phrases of a concept mean the same;
* the concepts of one group exclude each other, both their leaves and their general phrases;
* concepts of different groups are independent: neither entails or excludes the other;
* the concepts of one group have the same number of leaves. So replacing one by another does not change word frequencies, and
  a hypothesis does not reveal its label.
"""

from typing import NamedTuple


class Concept(NamedTuple):
    """General phrases, the leaves under them, and a tag that restricts combinations with other concepts."""

    general: tuple[str, ...]
    leaves: tuple[str, ...]
    tag: str = "any"


Group = tuple[Concept, ...]

IRREGULAR_PLURALS: dict[str, str] = {
    "mouse": "mice",
    "calf": "calves",
    "sheep": "sheep",
    "goose": "geese",
    "midwife": "midwives",
}

COUNTS: tuple[str, ...] = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
    "twenty-one",
)

# Quantifier → its wordings for "{group}". A wording contains the verb that agrees with it: {be} for plural, {is} for singular.
QUANTIFIERS: dict[str, tuple[str, ...]] = {
    "all": ("all of {group} {be}", "every one of {group} {is}", "each of {group} {is}"),
    "some": ("some of {group} {be}", "at least one of {group} {is}", "one or more of {group} {be}"),
    "none": ("none of {group} {be}", "not one of {group} {is}", "not a single one of {group} {is}"),
    "not all": ("not all of {group} {be}", "at least one of {group} {is} not", "not every one of {group} {is}"),
}

# ---------------------------------------------------------------- nouns ("singular|plural" if they are phrases)

PERSON_BROAD: tuple[str, ...] = ("person|people", "adult|adults")
PEOPLE: tuple[Group, ...] = (
    (
        Concept(
            ("medical worker|medical workers", "person who works in medicine|people who work in medicine"),
            ("nurse", "surgeon", "dentist", "paramedic", "midwife"),
        ),
    ),
    (
        Concept(
            ("food worker|food workers", "person who works with food|people who work with food"),
            ("baker", "chef", "pizza maker", "butcher", "pastry cook"),
        ),
    ),
    (
        Concept(
            ("construction worker|construction workers", "person who works on buildings|people who work on buildings"),
            ("bricklayer", "roofer", "plasterer", "house painter", "scaffolder"),
        ),
    ),
    (
        Concept(
            ("musician|musicians", "person who plays an instrument|people who play an instrument"),
            ("violinist", "drummer", "pianist", "cellist", "trumpeter"),
        ),
    ),
    (
        Concept(
            ("educator|educators", "person who teaches others|people who teach others"),
            ("schoolteacher", "professor", "piano teacher", "tutor", "driving instructor"),
        ),
    ),
    (
        Concept(
            ("athlete|athletes", "person who competes in a sport|people who compete in a sport"),
            ("boxer", "gymnast", "hurdler", "wrestler", "pole-vaulter"),
        ),
    ),
    (
        Concept(
            ("scientist|scientists", "person who does research|people who do research"),
            ("chemist", "physicist", "marine biologist", "geologist", "astronomer"),
        ),
    ),
    (
        Concept(
            ("agricultural worker|agricultural workers", "person who works in farming|people who work in farming"),
            ("shepherd", "dairy farmer", "pig farmer", "grape picker", "cattle farmer"),
        ),
    ),
    (
        Concept(
            ("transport worker|transport workers", "person who works in transport|people who work in transport"),
            ("bus driver", "airline pilot", "train conductor", "taxi driver", "ferry captain"),
        ),
    ),
    (
        Concept(
            ("writer|writers", "person who writes for a living|people who write for a living"),
            ("novelist", "playwright", "newspaper columnist", "screenwriter", "journalist"),
        ),
    ),
    (
        Concept(
            ("artisan|artisans", "person with a manual trade|people with a manual trade"),
            ("tailor", "potter", "weaver", "cobbler", "blacksmith"),
        ),
    ),
    (
        Concept(
            ("lawyer|lawyers", "person who practises law|people who practise law"),
            ("criminal lawyer", "divorce lawyer", "tax lawyer", "patent lawyer", "barrister"),
        ),
    ),
    (
        Concept(
            ("office worker|office workers", "person who works in an office|people who work in an office"),
            ("office clerk", "office manager", "payroll clerk", "filing clerk", "office secretary"),
        ),
    ),
    (
        Concept(
            (
                "emergency worker|emergency workers",
                "person who responds to emergencies|people who respond to emergencies",
            ),
            ("firefighter", "mountain rescuer", "ambulance driver", "coastguard officer", "fire captain"),
        ),
    ),
    (
        Concept(
            ("performer|performers", "person who performs on stage|people who perform on stage"),
            ("stage actor", "ballet dancer", "stage magician", "opera singer", "circus acrobat"),
        ),
    ),
)

ANIMAL_BROAD: tuple[str, ...] = ("animal|animals", "creature|creatures")
ANIMALS: tuple[Group, ...] = (
    (
        Concept(("dog|dogs", "member of the dog family|members of the dog family"), ("poodle", "beagle", "husky")),
        Concept(("cat|cats", "member of the cat family|members of the cat family"), ("tabby", "kitten", "tomcat")),
        Concept(("horse|horses", "member of the horse family|members of the horse family"), ("mare", "stallion", "colt")),
        Concept(("bovine|bovines", "animal of the cattle kind|animals of the cattle kind"), ("cow", "bull", "calf")),
        Concept(("sheep|sheep", "animal that carries wool|animals that carry wool"), ("ewe", "lamb", "ram")),
        Concept(("rodent|rodents", "animal of the rodent kind|animals of the rodent kind"), ("mouse", "rat", "hamster")),
        Concept(("bear|bears", "member of the bear family|members of the bear family"), ("grizzly", "panda", "bear cub")),
        Concept(("bird|birds", "animal with feathers|animals with feathers"), ("hen", "goose", "rooster")),
    ),
)

THING_BROAD: tuple[str, ...] = ("object|objects", "item|items")
THINGS: tuple[Group, ...] = (
    (
        Concept(
            ("container|containers", "thing for storing other things|things for storing other things"),
            ("box", "chest", "jar", "barrel", "crate"),
        ),
        Concept(
            ("vessel for drinks|vessels for drinks", "thing to drink from|things to drink from"),
            ("cup", "mug", "goblet", "tumbler", "beaker"),
        ),
        Concept(
            ("flower holder|flower holders", "thing to keep flowers in|things to keep flowers in"),
            ("vase", "flowerpot", "plant tub", "plant trough", "window planter"),
        ),
        Concept(
            ("serving dish|serving dishes", "dish for serving food|dishes for serving food"),
            ("soup bowl", "fruit bowl", "salad bowl", "serving platter", "serving tray"),
        ),
    ),
)

# ---------------------------------------------------------------- actions and states of the subject

ACTIONS: tuple[Group, ...] = (
    (
        Concept(("sleeping", "in a state of sleep"), ("napping", "dozing", "snoozing", "having a siesta"), "any"),
        Concept(
            ("running", "moving along at a run"),
            ("sprinting", "jogging", "running at full speed", "running a slow lap"),
            "out",
        ),
        Concept(
            ("reading", "looking through something to read"),
            ("reading a novel", "reading a comic", "reading a letter", "reading the news"),
        ),
        Concept(
            ("having some food", "eating something"),
            ("eating a sandwich", "eating a bowl of noodles", "eating an apple", "munching crisps"),
        ),
        Concept(
            ("preparing food", "getting a dish ready"),
            ("frying eggs", "baking bread", "stirring a stew", "chopping onions"),
            "none",
        ),
        Concept(
            ("playing an instrument", "making music with an instrument"),
            ("playing the violin", "playing the guitar", "playing a flute", "playing a trumpet"),
        ),
        Concept(
            ("mending something", "doing a repair job"),
            ("repairing a bicycle", "fixing a lamp", "repairing a radio", "fixing a broken chair"),
        ),
        Concept(
            ("cleaning", "getting rid of dirt"),
            ("mopping the floor", "scrubbing a table", "sweeping up dust", "polishing a window"),
            "in",
        ),
        Concept(
            ("writing", "putting words on paper"),
            ("writing a poem", "writing a postcard", "jotting down notes", "writing a shopping list"),
        ),
        Concept(
            ("drawing or painting", "at work on a drawing or a painting"),
            ("painting a portrait", "sketching a face", "drawing a cartoon", "painting a landscape"),
        ),
        Concept(
            ("doing needlework", "at work with a needle"),
            ("sewing a shirt", "stitching a quilt", "sewing a costume", "embroidering a cushion"),
        ),
        Concept(
            ("gardening", "taking care of plants"),
            ("watering roses", "pruning a hedge", "planting bulbs", "weeding a flower bed"),
            "none",
        ),
        Concept(
            ("cycling", "riding on two wheels"),
            ("riding a mountain bike", "riding a racing bike", "pedalling an old bicycle", "cycling very fast"),
            "none",
        ),
        Concept(
            ("swimming", "moving through water by swimming"),
            ("swimming on the back", "doing the butterfly stroke", "doing the crawl", "doing the breaststroke"),
            "none",
        ),
        Concept(
            ("climbing", "making a climb"),
            ("climbing a ladder", "climbing a rope", "climbing a rock face", "climbing an oak tree"),
            "none",
        ),
        Concept(
            ("ironing clothes", "using an iron on clothes"),
            ("ironing a shirt", "ironing a dress", "ironing a pair of trousers", "ironing a skirt"),
            "in",
        ),
        Concept(
            ("taking pictures", "using a camera"),
            ("photographing a statue", "filming a passing cloud", "taking a photo of a bird", "photographing a cat"),
        ),
        Concept(
            ("solving a puzzle", "at work on a puzzle"),
            ("solving a crossword", "doing a jigsaw puzzle", "solving a sudoku", "doing a word search"),
        ),
        Concept(
            ("dancing", "moving in a dance"),
            ("dancing to rock music", "doing a folk dance", "tap-dancing", "dancing a jig"),
        ),
        Concept(
            ("driving", "at the wheel of a vehicle"),
            ("driving a van", "driving a sports car", "driving a tractor", "driving a lorry"),
            "none",
        ),
        Concept(
            ("juggling", "keeping things in the air by juggling"),
            ("juggling three balls", "juggling oranges", "juggling wooden clubs", "juggling plastic rings"),
        ),
    ),
)

ANIMAL_ACTIONS: tuple[Group, ...] = (
    (
        Concept(
            ("sleeping", "in a state of sleep"),
            ("napping", "dozing", "snoozing", "sleeping deeply"),
        ),
        Concept(
            ("running", "moving along at a run"),
            ("racing around", "running in circles", "dashing off", "running at full speed"),
        ),
        Concept(
            ("eating", "having some food"),
            ("nibbling a carrot", "eating a crust of bread", "eating a turnip", "munching an apple"),
        ),
        Concept(
            ("drinking", "having something to drink"),
            ("drinking milk", "sipping some water", "drinking from a bucket", "gulping down water"),
        ),
        Concept(
            ("fighting", "in a fight"),
            ("fighting a rival", "fighting an intruder", "fighting a snake", "fighting over food"),
        ),
        Concept(
            ("being washed", "getting a wash"),
            (
                "being washed with soap",
                "being washed with a sponge",
                "being washed by a child",
                "being washed in a tub",
            ),
        ),
        Concept(
            ("swimming", "moving through water by swimming"),
            ("swimming across a pond", "swimming after a duck", "swimming towards a boat", "swimming upstream"),
            "none",
        ),
    ),
)

STATES: tuple[Group, ...] = (
    (
        Concept(("full", "filled up"), ("full of sand", "full of coins", "full of gravel")),
        Concept(("empty", "without anything inside"), ("recently emptied", "freshly emptied", "newly emptied")),
    ),
    (
        Concept(("clean", "in a clean state"), ("spotless", "scrubbed clean", "sparkling clean")),
        Concept(("dirty", "in need of a wash"), ("covered in dirt", "filthy", "caked with grime")),
    ),
    (
        Concept(("wet", "in a wet state"), ("soaking wet", "dripping wet", "wet with rain")),
        Concept(("dry", "in a dry state"), ("bone-dry", "wiped dry", "as dry as dust")),
    ),
    (
        Concept(("new", "of recent make"), ("brand-new", "only a few days old", "less than a week old")),
        Concept(("old", "made long ago"), ("centuries old", "over a century old", "a hundred years old")),
    ),
    (
        Concept(("expensive", "priced high"), ("terribly expensive", "outrageously costly", "absurdly expensive")),
        Concept(("cheap", "priced low"), ("dirt-cheap", "extremely cheap", "amazingly cheap")),
    ),
    (
        Concept(("heavy", "hard to lift"), ("extremely heavy", "as heavy as lead", "far too heavy to lift")),
        Concept(("light", "easy to lift"), ("as light as a feather", "extremely light", "featherlight")),
    ),
)

# ---------------------------------------------------------------- place, time and company

PLACES: tuple[Group, ...] = (
    (
        Concept(
            ("in a home", "in a place where somebody lives"),
            (
                "in the attic of a cottage",
                "in the kitchen of a flat",
                "in a family living room",
                "in a farmhouse bedroom",
            ),
            "in",
        ),
        Concept(
            ("at a school", "in a building where children are taught"),
            ("in a school classroom", "in a school library", "in the hall of a school", "in a school corridor"),
            "in",
        ),
        Concept(
            ("in a hospital", "in a building where patients are treated"),
            ("in a hospital ward", "in a hospital lobby", "in a hospital waiting room", "in a hospital basement"),
            "in",
        ),
        Concept(
            ("on public transport", "on board a vehicle for passengers"),
            ("on a city bus", "on a night train", "on a tram", "on an airport bus"),
            "in",
        ),
        Concept(
            ("in a shop", "in a place where goods are sold"),
            ("in a bookshop", "in a shoe shop", "in a toy store", "in a corner shop"),
            "in",
        ),
        Concept(
            ("in a restaurant", "in a place that serves meals"),
            ("in a pizzeria", "in a seafood restaurant", "in a steakhouse", "in a sushi restaurant"),
            "in",
        ),
        Concept(
            ("in a museum", "in a building with public exhibits"),
            ("in an art museum", "in a railway museum", "in a history museum", "in a science museum"),
            "in",
        ),
        Concept(
            ("in a factory", "in a building where goods are made"),
            ("in a car factory", "in a shoe factory", "in a glass factory", "in a paper mill"),
            "in",
        ),
        Concept(
            ("in a place of worship", "in a building made for prayer"),
            ("in a cathedral", "in a mosque", "in a synagogue", "in a village church"),
            "in",
        ),
        Concept(
            ("by the sea", "at the seaside"),
            ("on a sandy seaside beach", "on a seaside pier", "on a cliff above the sea", "on a seaside promenade"),
            "out",
        ),
        Concept(
            ("in the mountains", "high up in a mountain range"),
            ("on a snowy mountain peak", "on a mountain ridge", "on a steep mountain path", "on a mountain pass"),
            "out",
        ),
        Concept(
            ("in a forest", "on land covered by trees"),
            ("in a pine forest", "in a birch wood", "in a rainforest", "in a beech wood"),
            "out",
        ),
        Concept(
            ("in a public park", "in a green space that is open to all"),
            ("on a lawn in a city park", "near a pond in a park", "on a park path", "beside a park fountain"),
            "out",
        ),
        Concept(
            ("in a desert", "in a very dry region"),
            ("on a desert dune", "at a desert oasis", "in a rocky desert", "on a desert plain"),
            "out",
        ),
        Concept(
            ("on a sports ground", "at a place for playing sports"),
            ("on a football pitch", "on a tennis court", "on a running track", "on a baseball field"),
            "out",
        ),
    ),
)

ANIMAL_PLACES: tuple[Group, ...] = (
    (
        *(concept for concept in PLACES[0] if concept.general[0] in ("in a forest", "in a public park", "by the sea")),
        Concept(
            ("in the mountains", "high up in a mountain range"),
            ("on a mountain meadow", "on a mountain ridge", "on a steep mountain path", "on a mountain pass"),
            "out",
        ),
        Concept(
            ("on a farm", "on land that belongs to a farmer"),
            ("in the barn of a farm", "in a farmyard", "in a farm shed", "in a stable on a farm"),
            "in",
        ),
        Concept(
            ("at a zoo", "in a place where animals are on show"),
            ("in a zoo enclosure", "in a zoo cage", "near the gate of a zoo", "behind a fence at a zoo"),
            "in",
        ),
        Concept(
            ("in a clinic for animals", "in a building where animals are treated"),
            ("in a vet's waiting room", "on a vet's table", "in the lobby of a vet's clinic", "in a vet's surgery"),
            "in",
        ),
    ),
)

THING_PLACES: tuple[Group, ...] = (
    (
        Concept(
            ("in the kitchen", "in the room for cooking"),
            ("on the kitchen shelf", "on the kitchen table", "next to the kitchen sink"),
        ),
        Concept(
            ("in the garage", "in the space for the car"),
            ("on the garage floor", "by the garage door", "on the garage workbench"),
        ),
        Concept(
            ("in the bedroom", "in the room for sleeping"),
            ("under the bed in the bedroom", "on the bedroom carpet", "on the bedroom dresser"),
        ),
        Concept(
            ("in the garden", "on the land behind the house"),
            ("on the garden bench", "on the garden wall", "under the apple tree in the garden"),
        ),
        Concept(
            ("in the attic", "in the space under the roof"),
            ("in a corner of the attic", "on the attic floor", "by the attic window"),
        ),
    ),
)

TIMES: tuple[Group, ...] = (
    (
        Concept(
            ("in the morning", "at some time in the morning"),
            ("at eight in the morning", "at breakfast time", "just after sunrise", "late in the morning"),
        ),
        Concept(
            ("in the afternoon", "at some point after midday but before dusk"),
            ("at two in the afternoon", "at teatime", "in the middle of the afternoon", "early in the afternoon"),
        ),
        Concept(
            ("in the evening", "at some time in the evening"),
            (
                "at seven in the evening",
                "at six in the evening",
                "early in the evening",
                "in the middle of the evening",
            ),
        ),
        Concept(
            ("at night", "during the hours of the night"),
            ("at midnight", "in the middle of the night", "in the dead of night", "at the darkest hour of the night"),
            "night",
        ),
    ),
)

DAYS: tuple[Group, ...] = (
    (
        Concept(
            ("on a wet day", "on a day with wet weather"),
            ("on a rainy day", "on a day of heavy showers", "on a day of endless drizzle"),
        ),
        Concept(
            ("on a day without rain", "on a day that stays free of rain"),
            ("on a cloudless day", "on a perfectly dry day", "on a sunny day without a drop of rain"),
        ),
    ),
)

COMPANY: tuple[Group, ...] = (
    (
        Concept(
            ("with a relative", "in the company of a family member"),
            ("with a sister", "with a brother", "with an uncle", "with a grandmother"),
        ),
        Concept(
            ("without company", "with no one else"),
            ("all alone", "completely alone", "quite alone", "entirely alone"),
        ),
    ),
)

# ---------------------------------------------------------------- properties of the subject

_SHADES: dict[str, tuple[str, ...]] = {
    "red": ("a scarlet", "a crimson", "a ruby-red"),
    "blue": ("a navy-blue", "a sky-blue", "a cobalt-blue"),
    "green": ("an emerald", "an olive-green", "a lime-green"),
    "yellow": ("a lemon-yellow", "a mustard-yellow", "a canary-yellow"),
}
GARMENTS: tuple[Group, ...] = tuple(
    tuple(
        Concept((f"in a {colour} {item}", f"with a {colour} {item} on"), tuple(f"in {s} {item}" for s in shades))
        for colour, shades in _SHADES.items()
    )
    for item in ("hat", "coat", "scarf", "apron", "tie")
)

TRAITS: tuple[Group, ...] = (
    (
        Concept(("happy", "in high spirits"), ("cheerful", "joyful", "delighted", "overjoyed")),
        Concept(("unhappy", "in low spirits"), ("gloomy", "miserable", "heartbroken", "dejected")),
    ),
    (
        Concept(("young", "of a young age"), ("twenty-year-old", "nineteen-year-old", "very young", "extremely young")),
        Concept(("old", "of an advanced age"), ("eighty-year-old", "ninety-year-old", "very old", "extremely old")),
    ),
    (
        Concept(("tall", "of more than average height"), ("very tall", "rather tall", "extremely tall")),
        Concept(("short", "of less than average height"), ("very short", "rather short", "extremely short")),
    ),
    (
        Concept(("rich", "with plenty of money"), ("very rich", "wealthy", "extremely rich")),
        Concept(("poor", "with very little money"), ("penniless", "destitute", "extremely poor")),
    ),
)

COATS: tuple[Group, ...] = (
    (
        Concept(("light-coloured", "of a light colour"), ("white", "cream-coloured", "snow-white")),
        Concept(("dark-coloured", "of a dark colour"), ("black", "jet-black", "coal-black")),
    ),
    (
        Concept(("clean", "in a clean state"), ("spotless", "perfectly clean", "very clean")),
        Concept(("dirty", "in a dirty state"), ("muddy", "filthy", "very dirty")),
    ),
    (
        Concept(("fat", "of more than average weight"), ("very fat", "obese", "extremely fat")),
        Concept(("thin", "of less than average weight"), ("very thin", "skinny", "bony")),
    ),
    (
        Concept(("healthy", "in good health"), ("very healthy", "perfectly healthy", "thriving")),
        Concept(("sick", "in poor health"), ("feverish", "very sick", "seriously ill")),
    ),
)

MATERIALS: tuple[Group, ...] = (
    (
        Concept(("wooden", "made of some kind of wood"), ("oak", "pine", "walnut")),
        Concept(("metal", "made of some kind of metal"), ("steel", "copper", "tin")),
        Concept(("stone", "made of some kind of stone"), ("marble", "granite", "slate")),
    ),
    (
        Concept(("light-coloured", "of a light colour"), ("white", "cream-coloured", "ivory-coloured")),
        Concept(("dark-coloured", "of a dark colour"), ("black", "jet-black", "coal-black")),
    ),
)

ORIGINS: tuple[Group, ...] = (
    (
        Concept(("from Europe", "of European origin"), ("from Portugal", "from Poland", "from Sweden")),
        Concept(("from Asia", "of Asian origin"), ("from Japan", "from Vietnam", "from Nepal")),
        Concept(("from Africa", "of African origin"), ("from Kenya", "from Ghana", "from Morocco")),
        Concept(("from South America", "of South American origin"), ("from Peru", "from Chile", "from Brazil")),
    ),
)
