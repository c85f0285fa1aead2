"""The words of the tales: plain lists, and tables whose rows belong together.

A list entry is one noun, name or phrase. A table row binds several words at
once, so that causes fit effects: a kite is stuck in a tree and a ladder gets
it down. Everything is data; `tales.py` gives it forms and `*.tale` its use.
"""


def _list(text: str) -> list[str]:
    return [entry.strip() for entry in text.replace("\n", " ").split(",") if entry.strip()]


def _table(columns: str, text: str) -> list[dict[str, str]]:
    names = columns.split()
    rows = [[cell.strip() for cell in line.split("|")] for line in text.strip().splitlines()]
    for row in rows:
        assert len(row) == len(names), f"{row} does not fit {names}"
    return [dict(zip(names, row)) for row in rows]


BOYS = _list("""
Tom, Ben, Sam, Max, Leo, Jack, Tim, Finn, Noah, Owen, Eli, Luke, Adam, Oscar, Hugo, Theo, Felix, Jonas, Milo, Omar,
Ravi, Kofi, Diego, Mateo, Ivan, Nico, Paul, Peter, Henry, George, Arthur, Walter, Jamal, Kenji, Tariq, Emil, Otto, Simon,
Daniel, David, Lucas, Oliver, Billy, Charlie, Freddie, Harry, Jacob, James, John, Joe, Mark, Toby, William, Andre, Samir""")

GIRLS = _list("""
Mia, Lily, Anna, Emma, Lucy, Sara, Rosa, Nora, Zoe, Ella, Ruby, Ivy, Maya, Clara, Alice, Amy, Eva, Ada, Hana, Leila,
Nina, Tara, Priya, Amina, Sofia, Elena, Greta, Ingrid, Juno, Kate, Laura, Molly, Olive, Penny, Rita, Stella, Vera, Wanda,
Jane, Sue, Sally, Grace, Hazel, Holly, Jasmine, Julia, Luna, Mary, Sarah, Sophie, Tina, Yuki, Zara, Fatima, Naomi""")

PET_NAMES = _list("""
Pip, Rusty, Bramble, Daisy, Pebble, Biscuit, Clover, Button, Nutmeg, Hazel, Poppy, Rolo, Fern, Acorn, Tuft, Mossy,
Pepper, Ginger, Coco, Bean, Maple, Willow, Patch, Sunny, Bubbles, Twig, Berry, Misty, Dusty, Honey, Max, Spot, Buddy""")

# Parts for made-up names, so that the model learns to carry a name it has never seen.
NAME_STARTS = _list("""
B, Bl, Br, C, Cl, D, Dr, F, Fl, Fr, G, Gl, Gr, H, J, K, Kl, L, M, N, P, Pl, Qu, R, S, Sh, Sk, St, T, Th, Tr, V, W, X, Y, Z, Zw,
A, E, I, O, U""")
NAME_VOWELS = _list("a, e, i, o, u, a, e, i, o, u, ee, oo, ai, ie")
NAME_MIDDLES = _list("b, d, f, g, k, l, m, n, p, r, s, t, v, z, bb, ll, mm, nn, pp, tt, lb, ld, lm, mb, nd, nk, rb, rd, rl, rn, rv, st, zz")
NAME_ENDS = _list("a, o, i, y, ia, us, is, en, an, in, on, el, er, ie, as, ek, ot, , , n, l, m, s, t")

ANIMALS = _table("kind home food went place", """
fox|a den under the hill|berries|trotted|the forest
rabbit|a burrow in the meadow|carrots|hopped|the meadow
bear|a cave in the woods|honey|walked|the forest
mouse|a hole in the wall|cheese|ran|the barn
squirrel|a hollow oak tree|nuts|ran|the forest
hedgehog|a nest of dry leaves|apples|walked|the garden
duck|a nest by the pond|bread|waddled|the pond
duckling|a nest by the pond|bread|waddled|the pond
frog|a house of reeds by the pond|flies|hopped|the pond
turtle|a quiet place by the lake|lettuce|walked|the lake
owl|a hole in an old tree|seeds|flew|the forest
bird|a nest in a tall tree|worms|flew|the garden
crow|a nest in a tall tree|corn|flew|the field
cat|a basket by the fire|fish|walked|the village
kitten|a basket by the fire|milk|ran|the garden
dog|a little red house in the yard|bones|ran|the park
puppy|a little house in the yard|bones|ran|the park
pony|a stable on the farm|hay|trotted|the farm
lamb|a barn on the farm|grass|skipped|the meadow
goat|a barn on the farm|grass|skipped|the hill
pig|a pen on the farm|corn|trotted|the farm
hen|a coop on the farm|seeds|walked|the farm
elephant|a grassy valley|bananas|walked|the jungle
monkey|a tall tree in the jungle|bananas|climbed|the jungle
lion|a warm cave in the hills|meat|walked|the hills
tiger|a shady place in the jungle|meat|walked|the jungle
penguin|a house of snow|fish|waddled|the beach
seal|a cave by the sea|fish|swam|the beach
crab|a hole in the sand|seaweed|walked|the beach
deer|a quiet place in the forest|grass|ran|the forest
wolf|a cave in the forest|meat|ran|the forest
beaver|a lodge in the river|bark|swam|the river
otter|a den by the river|fish|swam|the river
badger|a burrow in the woods|roots|walked|the woods
raccoon|a hollow log|berries|ran|the woods
mole|a tunnel under the garden|roots|crawled|the garden
bee|a hive in the garden|honey|flew|the garden
snail|a shell with a spiral on it|lettuce|crept|the garden
dragon|a cave on the mountain|toast|flew|the mountain
koala|a tall gum tree|leaves|climbed|the forest
panda|a grove of bamboo|bamboo|walked|the forest
""")

SMALL = _list("mouse, frog, bee, snail, mole, bird, hedgehog, squirrel, crab, duckling, kitten")
BIG = _list("bear, elephant, lion, tiger, wolf, goat, pony, deer, dragon, panda, monkey, seal, dog")
FEMALE = _list("hen")

SIZES = _list("little, little, little, small, young, tiny, brave, kind, clever, quiet, cheerful, curious, shy, gentle, friendly, playful")
ANIMAL_TRAITS = _list("little, little, little, small, young, tiny, brave, gray, brown, fluffy, clever, shy, curious, lonely, hungry, friendly, gentle")
COLORS = _list("red, blue, green, yellow, purple, orange, pink, white, black, brown, golden, silver")
HARD = _list("shiny, wooden, old, new, tiny, big, little, pretty, bright, round")
SOFT = _list("soft, warm, old, new, little, big, pretty, striped, bright, fluffy")

HARD_THINGS = _list("""
ball, drum, boat, train, bucket, bell, whistle, button, ring, key, coin, lantern, box, jar, cup, spoon, flute, marble,
crown, clock, wagon, sled, top, truck, basket, robot, car, bowl, horn, toy horse, toy ship, music box, watering can, pencil""")
SOFT_THINGS = _list("""
doll, teddy bear, scarf, hat, blanket, pillow, mitten, sock, cap, ribbon, puppet, bag, coat, toy rabbit, toy bear, sweater""")
LIGHT_THINGS = _list("kite, balloon, paper boat, paper plane, umbrella, feather, flag, ball, hat, scarf, ribbon")
FOUND_THINGS = _list("""
key, coin, ring, button, bell, box, feather, shell, stone, marble, necklace, map, book, whistle, mitten, hat, watch, egg,
letter, bottle, leaf, seed, basket, bag, crown, lamp, toy car, teddy bear, ball, purse, flute, scarf, star""")
BERRIES = _list("berries, nuts, apples, cherries, plums, mushrooms, acorns, pears, strawberries, grapes")
TREATS = _list("cake, pie, sandwich, cookie, muffin, pancake, bun, loaf of bread, piece of cheese, cupcake, apple, pear, banana, donut")
FLOWERS = _list("rose, sunflower, tulip, daisy, lily, poppy, bluebell")
VEGETABLES = _list("pumpkin, carrot, bean plant, tomato plant, cabbage, pea plant, melon")
GIFTS = _list("""
kite, book, drum, bicycle, puppy, kitten, doll, ball, boat, hat, scarf, flute, box of paints, toy train, pair of boots,
music box, telescope, puzzle, lantern, teddy bear, toy plane, guitar, red wagon, new backpack, storybook""")
JOBS = _list("""
baker, farmer, miller, fisherman, gardener, clockmaker, carpenter, teacher, doctor, sailor, painter, tailor, mailman, king, queen, shopkeeper, blacksmith, singer""")
INSECTS = _list("butterfly, bee, ladybug, dragonfly, ant, beetle, spider, grasshopper, snail, worm")
SEEN = _list("""
butterfly, rainbow, squirrel, red bird, big rock, little bridge, tall tree, blue flower, white horse, green frog,
old well, tiny mouse, yellow duck, family of ducks, fat cat, funny cloud, row of ants, spotted cow, windmill, big dog, deer, owl""")
FEELINGS = _list("happy, proud, glad, calm, thankful, cheerful, excited")
NUMBERS = _list("two, three, four, five, six, seven, ten")
PLAYS = _list("""
played tag, played hide and seek, flew kites, rolled down the hill, picked flowers, sang songs, told stories, chased butterflies,
skipped stones, climbed trees, danced in the grass, played ball, splashed in the stream, looked for shells, built a tower, drew pictures""")
WEATHERS = _list("sunny, warm, bright, cold, windy, cloudy, rainy, snowy, foggy, cool")

# place: `at` follows was or played, `to` follows went.
PLACES = _table("name at to", """
park|in the park|to the park
beach|at the beach|to the beach
forest|in the forest|into the forest
garden|in the garden|into the garden
river|by the river|to the river
lake|by the lake|to the lake
meadow|in the meadow|to the meadow
hill|on the hill|up the hill
farm|on the farm|to the farm
pond|by the pond|to the pond
field|in the field|to the field
woods|in the woods|into the woods
market|at the market|to the market
village|in the village|to the village
yard|in the yard|into the yard
playground|at the playground|to the playground
bridge|near the bridge|to the bridge
orchard|in the orchard|to the orchard
school|at school|to school
""")

OUTDOORS = [row for row in PLACES if row["name"] not in ("market", "village", "yard", "playground", "bridge", "school", "farm")]

HIDING = _list("""
under the bed, behind the door, in the closet, under a pile of leaves, behind a big rock, inside an old boot, in a box,
under the table, behind the sofa, in the tall grass, under a bush, next to the well, behind the barn, under a bench,
in the mud, on top of the shelf, under a blanket, between two stones, inside a basket, at the foot of an old tree""")

STUCK = _table("where how tool done", """
high up in a tree|the wind blew it|ladder|climbed up and took it down
on the roof of the barn|the wind carried it|long ladder|climbed up and brought it down
in the middle of the pond|the wind pushed it|long stick|reached out and pulled it back
in a thorny bush|a gust of wind threw it|pair of thick gloves|reached in and took it out
on top of a high wall|the wind blew it|wooden box|stood on it and took it down
on a branch over the river|a strong wind took it|long pole|hooked it and pulled it back
""")

DISHES = _table("dish a b c do smell", """
cake|flour|sugar|eggs|put it in the oven|sweet
loaf of bread|flour|water|salt|baked it until it was brown|warm and good
pot of soup|carrots|potatoes|beans|let it cook over the fire|wonderful
pie|apples|butter|flour|baked it until it was golden|sweet
bowl of fruit salad|apples|grapes|bananas|mixed it with a big spoon|fresh and sweet
stack of pancakes|milk|flour|eggs|cooked them in a hot pan|like butter
pizza|cheese|tomatoes|flour|slid it into the hot oven|wonderful
batch of cookies|butter|sugar|oats|baked them until they were brown|sweet
pot of jam|berries|sugar|lemon|stirred it over the fire|like summer
""")

BUILDS = _table("thing a b tool use", """
birdhouse|wood|nails|hammer|Soon a family of birds moved in
tree house|boards|ropes|hammer|They sat up there and looked at the stars
little boat|wood|cloth|saw|It floated down the stream without a leak
kite|paper|string|glue|It flew higher than the trees
bridge|logs|ropes|axe|Now everyone could cross the stream with dry feet
swing|rope|a board|saw|It went so high that they laughed out loud
scarecrow|straw|old clothes|needle|The crows stayed away from the corn
wagon|boards|four wheels|hammer|It rolled down the hill like the wind
little house|stones|mud|shovel|It kept them dry in the rain
bench|boards|nails|hammer|The old people of the village sat on it every evening
snow fort|snow|ice|shovel|They hid inside and threw snowballs
sand castle|sand|shells|bucket|Even the waves seemed to stop and look at it
raft|logs|ropes|saw|It carried them all the way across the lake
""")

FEARS = _table("of see stay help try end", """
the dark|The room was dark and full of shadows|under the blanket|held a little lamp|turned off the lamp, just for a moment|The dark was soft and quiet, and there was nothing to fear
deep water|The water looked cold and deep|on the shore|stood in the water and held out a hand|put one foot in, and then the other|The water was cool and held {A.him} up like a soft bed
high places|The hill looked very high|at the bottom|showed the way, one step at a time|took one small step, and then another|From the top they could see the whole valley
big dogs|The dog next door was big and loud|behind the gate|let the dog sniff a hand|held out a hand|The dog licked it and wagged its tail
thunder|The sky went dark and the thunder boomed|under the table|counted the seconds after each flash|counted out loud, one, two, three|The storm was already going away
the slide|The slide at the playground was tall|on the bench|went down first and waited at the bottom|sat down at the top and let go|It was fast and fun
singing in front of people|There were many faces in the room|behind the curtain|smiled from the first row|took a deep breath and began to sing|Everyone clapped and cheered
the forest|The trees were tall and made strange sounds|at the edge|told the name of each bird that sang|walked in a little way, hand in hand|It was green and quiet and full of songs
""")

SKILLS = _table("verb ing fail tip good", """
ride a bicycle|riding|fell over into the grass|look ahead, not at your feet|rode all the way around the park
swim|swimming|swallowed some water|kick your legs slowly|swam across the pond
whistle|whistling|only blew air|make your lips round|whistled a whole song
skate|skating|sat down hard on the ice|bend your knees a little|slid across the ice like a bird
read|reading|mixed up the letters|say each sound, one by one|read a whole book out loud
play the flute|playing|made a terrible squeak|blow softly|played a sweet song
juggle|juggling|dropped every ball|start with just two balls|kept three balls in the air
climb the big tree|climbing|slid back down|hold on with both hands|sat on the highest branch
tie a knot|tying knots|made a big tangle|go over, under and through|tied the best knot of all
dance|dancing|tripped and sat down|listen to the drum|danced all evening
jump over the stream|jumping|landed in the water|take a long run first|flew over the stream and landed on dry grass
catch a ball|catching|dropped it|keep your eyes on the ball|caught it with one hand
draw a horse|drawing|made it look like a potato|start with the shape of the back|drew a horse that seemed to run
""")

SEASONS = _table("name sign", """
spring|The first flowers came up
summer|The sun was hot
autumn|The leaves turned red and gold
winter|Snow lay on the ground
""")

TRIPS = _table("to at saw did carry home", """
to the beach|at the beach|big blue waves|built a castle of sand|a bag of shells|with sand in their shoes
to the zoo|at the zoo|tall giraffes|fed the goats|a little paper lion|with tired feet
to the farm|at the farm|cows and chickens|rode on a hay wagon|a basket of eggs|smelling of hay
to the mountains|in the mountains|peaks white with snow|drank from a cold stream|a smooth gray stone|with red cheeks
to the city|in the city|tall houses and bright lights|rode on a red bus|a picture of the river|full of stories
to the lake|at the lake|white swans|rowed a small boat|a white feather|when the sun went down
to the forest|in the forest|deer with big brown eyes|looked for mushrooms|a basket of mushrooms|before it got dark
to the fair|at the fair|wheels full of lights|rode on a wooden horse|a red balloon|sleepy and happy
to the museum|at the museum|the bones of a giant animal|drew pictures of old ships|a book about the stars|talking all the way
to the island|on the island|birds with red beaks|walked around the whole shore|a bag of colored stones|on the last boat
""")

BREAKS = _table("thing piece fix", """
vase|lay in three pieces|glued the pieces together
cup|had lost its handle|stuck the handle back on
toy train|had lost a wheel|put on a new wheel made of wood
clock|had stopped ticking|cleaned the tiny wheels inside
chair|had a broken leg|nailed on a new leg
fence|had a big hole|nailed two new boards over the hole
music box|made no sound|found the bent spring and set it straight
lantern|had a crack in the glass|put in a new pane of glass
kite|had a long tear|sewed the tear with strong thread
boat|had a hole in the bottom|filled the hole with tar
doll|had lost an arm|sewed the arm back on
window|was cracked from side to side|put in a new pane of glass
bicycle|had a flat tire|put a patch on the tire
wagon|had a broken wheel|made a new wheel out of oak
""")

RESCUES = _table("trap how", """
fell into a deep hole and could not get out|brought a long vine and tied it to a tree. Slowly, {B} climbed out
got caught in a net|bit through one string after another. It took {n} hours, but then {B} was free
got a foot stuck between two stones|crawled under the stones and dug the earth away. Soon {B} was free
had a thorn in one foot and could not walk|was small enough to see the thorn, and pulled it out
could not find the way in the fog|knew every stone on the ground and led {B} home
fell asleep on the ice, and the ice began to crack|jumped up and down on {B.s} nose until {B} woke up and ran to the shore
""")

HURTS = _table("kind hurt care later", """
bird|had a hurt wing|made a nest in a box and brought it seeds|sang at the window every morning
rabbit|had a thorn in its paw|pulled out the thorn and washed the paw|came back to play in the yard
kitten|was wet and cold|dried it with a towel and gave it warm milk|slept at the foot of the bed
puppy|was lost and hungry|gave it water and something to eat|followed {A.him} everywhere
butterfly|was caught in a web|freed it, very gently|danced around the flowers
hedgehog|was stuck in a fence|bent the wire and let it out|came to the garden each night
duckling|had lost its mother|carried it to the pond and found its mother|swam over to say hello
turtle|lay on its back|turned it over with both hands|walked slowly down to the water
squirrel|had hurt its leg|wrapped the leg in a soft cloth|left a nut on the step
baby owl|had fallen from its nest|put it back in the nest|hooted softly in the night
""")

SHOPS = _table("shop thing cost", """
toy shop|red train|five coins
bakery|cake with cherries|three coins
market|bag of plums|two coins
bookshop|book about the sea|six coins
shoe shop|pair of green boots|eight coins
flower shop|pot of roses|four coins
candy shop|jar of candy|three coins
hat shop|hat with a feather|seven coins
""")

LIES = _table("did hid clue", """
ate the last piece of cake|wiped the crumbs away|a crumb still on {A.his} chin
broke the blue cup|hid the pieces under the rug|a blue piece on the floor
spilled the milk|covered it with a towel|white drops on the table
lost the house key|said nothing about it|an empty hook by the door
picked all the roses|hid them in a bag|a thorn in {A.his} sleeve
forgot to feed the hens|went off to play|the empty bowl
left the gate open|ran away quickly|the open gate
drew on the wall|stood in front of it|the red crayon
ate all the honey|hid the empty jar|something sticky on {A.his} nose
""")
