"""What each tale is about, as one says it after "a story about"."""

TOPICS = {
    "newfriend": "a new friend", "share": "sharing", "quarrel": "a quarrel", "stuck": "something that got stuck",
    "race": "a race", "sick": "a sick friend", "hide": "a game of hide and seek", "shy": "being afraid",
    "skill": "learning something new", "show": "a show", "lost": "something that was lost", "rain": "a rainy day",
    "bake": "cooking", "birthday": "a birthday", "repair": "something broken", "bedtime": "going to bed",
    "cleanup": "a messy room", "truth": "telling the truth", "garden": "a garden", "storm": "a storm", "trip": "a trip",
    "snow": "the snow", "lostway": "getting lost", "hurt": "a hurt animal", "treasure": "a treasure", "egg": "an egg",
    "wake": "the seasons", "school": "school", "baby": "a new baby", "fishing": "fishing", "king": "a king",
    "children": "three friends", "bigsmall": "big and small", "paint": "painting", "moon": "the moon",
    "found": "something that was found", "build": "building something", "shop": "a shop", "wish": "a wish",
    "dragon": "a dragon", "boat": "a boat", "winterfood": "getting ready for winter", "picnic": "a picnic", "pet": "a pet",
}
