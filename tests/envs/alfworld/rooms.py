"""A small hand-made room with every feature of the rules; loads quickly in both engines."""

ROOM = """
(define (problem small) (:domain alfred)
(:objects
agent1 - agent
loc_bar_0 loc_bar_1 loc_bar_2 loc_bar_3 loc_bar_4 - location
CounterTop_bar_1 Shelf_bar_1 Shelf_bar_2 Fridge_bar_1 Microwave_bar_1 Sink_bar_1_bar_SinkBasin - receptacle
Apple_bar_1 Apple_bar_2 Bread_bar_1 Mug_bar_1 Bowl_bar_1 Knife_bar_1 DeskLamp_bar_1 Chair_bar_1 Vase - object
AppleType BreadType MugType BowlType KnifeType DeskLampType ChairType ButterKnifeType - otype
CounterTopType ShelfType FridgeType MicrowaveType SinkBasinType - rtype
)
(:init
(= (total-cost) 0) (= (distance loc_bar_0 loc_bar_1) 3)
(atLocation agent1 loc_bar_0)
(receptacleType CounterTop_bar_1 CounterTopType) (receptacleAtLocation CounterTop_bar_1 loc_bar_1)
(receptacleType Shelf_bar_1 ShelfType) (receptacleAtLocation Shelf_bar_1 loc_bar_1)
(receptacleType Shelf_bar_2 ShelfType) (receptacleAtLocation Shelf_bar_2 loc_bar_1)
(receptacleType Fridge_bar_1 FridgeType) (receptacleAtLocation Fridge_bar_1 loc_bar_2) (openable Fridge_bar_1)
(receptacleType Microwave_bar_1 MicrowaveType) (receptacleAtLocation Microwave_bar_1 loc_bar_3)
(openable Microwave_bar_1) (opened Microwave_bar_1)
(receptacleType Sink_bar_1_bar_SinkBasin SinkBasinType) (receptacleAtLocation Sink_bar_1_bar_SinkBasin loc_bar_4)
(objectType Apple_bar_1 AppleType) (inReceptacle Apple_bar_1 CounterTop_bar_1) (objectAtLocation Apple_bar_1 loc_bar_1)
(objectType Apple_bar_2 AppleType) (inReceptacle Apple_bar_2 Fridge_bar_1) (objectAtLocation Apple_bar_2 loc_bar_2)
(objectType Bread_bar_1 BreadType) (inReceptacle Bread_bar_1 CounterTop_bar_1) (objectAtLocation Bread_bar_1 loc_bar_1)
(objectType Mug_bar_1 MugType) (inReceptacle Mug_bar_1 CounterTop_bar_1) (inReceptacle Mug_bar_1 Shelf_bar_1)
(objectAtLocation Mug_bar_1 loc_bar_1)
(inReceptacleObject Apple_bar_1 Bowl_bar_1) (inReceptacleObject Bowl_bar_1 Bowl_bar_1)
(objectType Bowl_bar_1 BowlType) (inReceptacle Bowl_bar_1 Shelf_bar_2) (objectAtLocation Bowl_bar_1 loc_bar_1)
(objectType Knife_bar_1 KnifeType) (inReceptacle Knife_bar_1 CounterTop_bar_1) (objectAtLocation Knife_bar_1 loc_bar_1)
(objectType DeskLamp_bar_1 DeskLampType) (inReceptacle DeskLamp_bar_1 Shelf_bar_2) (toggleable DeskLamp_bar_1)
(objectType Chair_bar_1 ChairType) (objectAtLocation Chair_bar_1 loc_bar_1)
(pickupable Apple_bar_1) (pickupable Apple_bar_2) (pickupable Bread_bar_1) (pickupable Mug_bar_1)
(pickupable Bowl_bar_1) (pickupable Knife_bar_1)
(isReceptacleObject Mug_bar_1) (isReceptacleObject Bowl_bar_1)
(sliceable Apple_bar_1) (sliceable Apple_bar_2) (sliceable Bread_bar_1)
(cleanable Apple_bar_1) (cleanable Mug_bar_1) (cleanable Knife_bar_1) (cleanable Apple_bar_2)
(heatable Apple_bar_1) (heatable Mug_bar_1) (coolable Apple_bar_1) (coolable Mug_bar_1)
(canContain CounterTopType AppleType) (canContain CounterTopType MugType) (canContain CounterTopType KnifeType)
(canContain CounterTopType AppleType) (canContain ShelfType AppleType) (canContain ShelfType MugType)
(canContain FridgeType AppleType) (canContain MicrowaveType AppleType) (canContain SinkBasinType KnifeType)
)
(:goal (and (exists (?r - receptacle) (exists (?o - object) (and
  (inReceptacle ?o ?r) (objectType ?o AppleType) (receptacleType ?r MicrowaveType))))))
)
"""

# A walk that uses every rule; "#" marks commands that do nothing.
WALK = (
    "look",
    "examine countertop 1#",
    "go to countertop 1",
    "look",
    "go to shelf 2#",
    "examine shelf 2",
    "examine apple 2#",
    "use desklamp 1",
    "use desklamp 1",
    "examine desklamp 1#",
    "slice apple 2 with knife 1#",
    "take knife 1 from countertop 1",
    "examine knife 1",
    "take mug 1 from shelf 2#",
    "slice apple 2 with knife 1",
    "slice bread 1 with knife 1",
    "slice apple 1 with knife 1#",
    "inventory",
    "go to sinkbasin 1",
    "clean knife 1 with sinkbasin 1",
    "examine knife 1",
    "move knife 1 to sinkbasin 1",
    "look",
    "go to shelf 1",
    "take mug 1 from countertop 1",
    "examine mug 1",
    "examine shelf 2",
    "move mug 1 to shelf 1",
    "look",
    "take mug 1 from shelf 2",
    "look",
    "move mug 1 to countertop 1",
    "look",
    "take bowl 1 from shelf 1",
    "examine bowl 1",
    "move bowl 1 to shelf 1#",
    "go to fridge 1",
    "take apple 1 from fridge 1#",
    "open fridge 1",
    "open fridge 1#",
    "take apple 1 from fridge 1#",
    "close fridge 1",
    "go to microwave 1",
    "close microwave 1",
    "examine microwave 1",
    "open microwave 1",
    "help",
    "inventory",
)
# Another one, with the apple: cut, washed, heated, cooled, brought to the goal, and taken away from
# it again.
APPLE_WALK = (
    "go to countertop 1",
    "take knife 1 from countertop 1",
    "slice apple 2 with knife 1",
    "move knife 1 to countertop 1",
    "take apple 2 from countertop 1",
    "examine apple 2",
    "go to sinkbasin 1",
    "clean apple 2 with sinkbasin 1",
    "examine apple 2",
    "go to microwave 1",
    "heat apple 2 with microwave 1",
    "examine apple 2",
    "go to fridge 1",
    "cool apple 2 with fridge 1",
    "examine apple 2",
    "go to microwave 1",
    "move apple 2 to microwave 1",
    "look",
    "take apple 2 from microwave 1",
    "LOOK#",
    "move apple 2 to microwave 1",
    "go to fridge 1",
)
