"""A few German sentences with their English translations: the second language of the speech model.

Each pattern has the same slots on both sides. Nouns carry their article, in the case that the pattern needs.
"""

import random

# (nominative, accusative, dative, English)
WHO = [
    ("der kleine Hund", "den kleinen Hund", "dem kleinen Hund", "the little dog"),
    ("die graue Katze", "die graue Katze", "der grauen Katze", "the grey cat"),
    ("das junge Pferd", "das junge Pferd", "dem jungen Pferd", "the young horse"),
    ("der schlaue Fuchs", "den schlauen Fuchs", "dem schlauen Fuchs", "the clever fox"),
    ("die alte Eule", "die alte Eule", "der alten Eule", "the old owl"),
    ("der müde Bär", "den müden Bären", "dem müden Bären", "the tired bear"),
    ("das weiße Kaninchen", "das weiße Kaninchen", "dem weißen Kaninchen", "the white rabbit"),
    ("die fleißige Biene", "die fleißige Biene", "der fleißigen Biene", "the busy bee"),
    ("mein Bruder", "meinen Bruder", "meinem Bruder", "my brother"),
    ("meine Schwester", "meine Schwester", "meiner Schwester", "my sister"),
    ("unser Nachbar", "unseren Nachbarn", "unserem Nachbarn", "our neighbor"),
    ("die Lehrerin", "die Lehrerin", "der Lehrerin", "the teacher"),
]
WHERE = [
    ("im Garten", "in the garden"), ("am Fluss", "by the river"), ("hinter dem Haus", "behind the house"),
    ("unter dem Baum", "under the tree"), ("auf der Wiese", "in the meadow"), ("in der Küche", "in the kitchen"),
    ("vor der Schule", "in front of the school"), ("auf dem Berg", "on the mountain"), ("am Meer", "by the sea"),
    ("im Wald", "in the forest"), ("neben der Brücke", "next to the bridge"), ("auf dem Markt", "at the market"),
]
WHEN = [
    ("heute", "today"), ("jeden Morgen", "every morning"), ("am Abend", "in the evening"), ("im Winter", "in winter"),
    ("im Sommer", "in summer"), ("nach dem Essen", "after the meal"), ("bei Regen", "when it rains"),
    ("am Sonntag", "on Sunday"), ("in der Nacht", "at night"), ("manchmal", "sometimes"),
]
DOES = [
    ("schläft", "sleeps"), ("spielt", "plays"), ("singt", "sings"), ("arbeitet", "works"), ("wartet", "waits"),
    ("tanzt", "dances"), ("sitzt", "sits"), ("lacht", "laughs"),
]
SEES = [
    ("sieht", "sees"), ("sucht", "looks for"), ("findet", "finds"), ("ruft", "calls"), ("besucht", "visits"), ("hört", "hears"),
]
THINGS = [
    ("Äpfel", "apples"), ("Bücher", "books"), ("Blumen", "flowers"), ("Steine", "stones"), ("Vögel", "birds"),
    ("Schiffe", "ships"), ("Sterne", "stars"), ("Schlüssel", "keys"), ("Boote", "boats"), ("Fische", "fish"),
]
COLORS = [
    ("rot", "red"), ("blau", "blue"), ("grün", "green"), ("gelb", "yellow"), ("schwarz", "black"), ("weiß", "white"),
]
UNITS = ["", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf", "dreizehn",
         "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn"]
TENS = ["", "", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]
ENGLISH_UNITS = ["", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
                 "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
ENGLISH_TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def number(value: int) -> tuple[str, str]:
    """2 to 99 in words."""
    if value < 20:
        return UNITS[value], ENGLISH_UNITS[value]
    tens, units = divmod(value, 10)
    german = f"{UNITS[units]}und{TENS[tens]}" if units else TENS[tens]
    english = f"{ENGLISH_TENS[tens]}-{ENGLISH_UNITS[units]}" if units else ENGLISH_TENS[tens]
    return german, english


def sentence(rng: random.Random) -> tuple[str, str]:
    who, whom = rng.sample(WHO, 2)
    where, when, does, sees = (rng.choice(table) for table in (WHERE, WHEN, DOES, SEES))
    thing, color, count = rng.choice(THINGS), rng.choice(COLORS), number(rng.randint(2, 99))
    german, english = rng.choice([
        (f"{who[0]} {does[0]} {where[0]}.", f"{who[3]} {does[1]} {where[1]}."),
        (f"{when[0]} {does[0]} {who[0]} {where[0]}.", f"{when[1]}, {who[3]} {does[1]} {where[1]}."),
        (f"{who[0]} {sees[0]} {whom[1]} {where[0]}.", f"{who[3]} {sees[1]} {whom[3]} {where[1]}."),
        (f"{when[0]} {sees[0]} {who[0]} {whom[1]}.", f"{when[1]}, {who[3]} {sees[1]} {whom[3]}."),
        (f"{where[0]} sind {count[0]} {thing[0]}.", f"there are {count[1]} {thing[1]} {where[1]}."),
        (f"{who[0]} hat {count[0]} {thing[0]}.", f"{who[3]} has {count[1]} {thing[1]}."),
        (f"die {thing[0]} {where[0]} sind {color[0]}.", f"the {thing[1]} {where[1]} are {color[1]}."),
        (f"{who[0]} spielt mit {whom[2]}.", f"{who[3]} plays with {whom[3]}."),
        (f"wo ist {who[0]}?", f"where is {who[3]}?"),
        (f"{who[0]} ist {where[0]}.", f"{who[3]} is {where[1]}."),
    ])
    return german[0].upper() + german[1:], english[0].upper() + english[1:]
