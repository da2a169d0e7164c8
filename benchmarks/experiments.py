"""The experiments behind the evidence pages: their arms, and the tables that show them."""

from dataclasses import dataclass

GRPO, GIGPO, REPEAT, GRAPH, COMBINATION = (
    "GRPO",
    "GiGPO",
    "repeat discount",
    "`graph_values`",
    "combination",
)


@dataclass(frozen=True, eq=False)  # hashed by identity
class Experiment:
    """Arms that were trained with equal seeds, tasks and budgets.

    Attributes:
      name: Environment and number of iterations.
      arms: Path of the runs of each arm below benchmarks/results, without "_seed" and the seed;
        the first is
        the baseline.
      mains: Arms whose final success minus GRPO's final success is a protocol's main comparison.
      files: Files of `gigpo eval` with further outcomes of the protocol.
      seeds: Seeds that are compared; all if empty.
      family: Name that experiments share whose final differences are corrected together, and whose
        other outcomes are exploratory; empty: all outcomes of this one are.
      caveat: Reason why no difference counts as significant, whatever its p-value.
    """

    name: str
    arms: dict[str, str]
    mains: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    family: str = ""
    caveat: str = ""


_SOKOBAN = "env.options.anchor=state_rl.settings.shrinkage=0.25_rl.settings.truncation=ignore"
EXPERIMENTS = (
    Experiment(
        "ALFWorld, 20",
        {
            GRPO: "alfworld_long/grpo",
            GIGPO: "alfworld_long/gigpo",
            REPEAT: "alfworld_long/repeat_discount_gigpo",
        },
    ),
    Experiment(
        "ALFWorld, 100",
        {
            GRPO: "alfworld_pooled/reported/grpo_lr1e-4",
            GIGPO: "alfworld_pooled/reported/gigpo_lr1e-4",
            REPEAT: "alfworld_pooled/reported/repeat_discount_gigpo_lr3e-4",
            COMBINATION: "alfworld_pooled/reported/repeat_discount_graph_values_episode_lr3e-4",
        },
        mains=(COMBINATION,),
        files=("unseen_1.json", "seen.json", "seen_1.json"),
    ),
    Experiment(
        "WebShop, 16",
        {GRPO: "webshop_long/grpo", GIGPO: "webshop_long/gigpo"},
    ),
    Experiment(
        "WebShop, 60",
        {
            GRPO: "webshop_pooled/reported/grpo_lr2e-4",
            GIGPO: "webshop_pooled/reported/gigpo_lr2e-4",
            GRAPH: "webshop_pooled/reported/graph_values_lr2e-4",
            COMBINATION: "pooled_combined/reported/webshop/combined_lr2e-4",
        },
        mains=(GRAPH, COMBINATION),
    ),
    Experiment(
        "WebShop, 100",
        {
            GRPO: "webshop_100/grpo",
            GIGPO: "webshop_100/gigpo",
            COMBINATION: "webshop_100/combined",
        },
        mains=(COMBINATION,),
        files=("temperature_1.json",),
    ),
    Experiment(
        "BabyAI, 6",
        {
            GRPO: "babyai_tiny/grpo",
            GIGPO: "babyai_tiny/gigpo",
            REPEAT: "babyai_tiny/repeat_discount_gigpo",
            GRAPH: "babyai_tiny/graph_values_state",
        },
        caveat="rates were chosen on the reported panels",
    ),
    Experiment(
        "Sokoban, 30",
        {GRPO: "sokoban_text_tiny/grpo", GIGPO: "sokoban_text_tiny/gigpo"},
    ),
    Experiment(
        "Sokoban, 60",
        {
            GRPO: "sokoban_pooled/grpo_optim.lr=2e-4",
            GIGPO: "sokoban_pooled/gigpo_optim.lr=6e-4",
            GRAPH: f"sokoban_pooled/graph_values_{_SOKOBAN}_optim.lr=2e-4",
            COMBINATION: "pooled_combined/reported/sokoban/combined_lr6e-4",
        },
        mains=(GRAPH,),
    ),
    Experiment(
        "FrozenLake, 20",
        {
            GRPO: "frozenlake_pooled/reported/plain/grpo_lr1e-3",
            GIGPO: "frozenlake_pooled/reported/plain/gigpo_lr1e-3",
            GRAPH: "frozenlake_pooled/reported/plain/graph_values_lr3e-3",
        },
    ),
    Experiment(
        "FrozenLake with slips, 20",
        {
            GRPO: "frozenlake_pooled/reported/slippery/grpo_lr1e-3",
            GIGPO: "frozenlake_pooled/reported/slippery/gigpo_lr3e-3",
            GRAPH: "frozenlake_pooled/reported/slippery/graph_values_lr3e-3",
        },
        mains=(GRAPH,),
    ),
    *(
        Experiment(
            f"BabyAI at {rate}, 6",
            {
                GRPO: f"babyai_rates/grpo_{rate}",
                GIGPO: f"babyai_rates/gigpo_{rate}",
                REPEAT: f"babyai_rates/repeat_discount_{rate}",
                GRAPH: f"babyai_rates/graph_values_{rate}",
            },
            mains=mains,
            family="babyai_rates",
        )
        for rate, mains in (("6e-4", (GRAPH,)), ("1.8e-3", ()))
    ),
)
_LONG = "alfworld_long"
_ALFWORLD = EXPERIMENTS[1].arms
# The tables of single experiments; experiments of the list above have keys of their own.
TABLES = {
    "alfworld_first": Experiment(
        "ALFWorld, 20, first arms",
        {
            GRPO: f"{_LONG}/grpo",
            "RLOO": f"{_LONG}/rloo",
            GIGPO: f"{_LONG}/gigpo",
            "GiGPO, `paper`": f"{_LONG}/gigpo_paper",
            "GiGPO, finer anchors": f"{_LONG}/gigpo_finer",
            "text critic": f"{_LONG}/text_critic_finer",
        },
        seeds=(0, 1, 2, 3, 4),
    ),
    "alfworld_family": Experiment(
        "ALFWorld, 20, family",
        {
            GRPO: f"{_LONG}/grpo",
            "SALT over GiGPO": f"{_LONG}/salt_gigpo_finer",
            "HGPO": f"{_LONG}/hgpo",
            "text critic": f"{_LONG}/text_critic_finer",
            "GiGPO, `paper`": f"{_LONG}/gigpo_paper",
            REPEAT: f"{_LONG}/repeat_discount_gigpo",
            "PPO": f"{_LONG}/ppo",
        },
        seeds=(0, 1, 2),
    ),
    "alfworld_confirmation": Experiment(
        "ALFWorld, 20, confirmation",
        {
            GRPO: f"{_LONG}/grpo",
            GIGPO: f"{_LONG}/gigpo",
            "repeat discount over GRPO": f"{_LONG}/repeat_discount_grpo",
            REPEAT: f"{_LONG}/repeat_discount_gigpo",
        },
        mains=(REPEAT,),
        seeds=(5, 6, 7, 8, 9),
    ),
    "alfworld_100": EXPERIMENTS[1],
    "alfworld_pooling": Experiment(
        "ALFWorld, 100, pooling",
        {name: _ALFWORLD[name] for name in (REPEAT, COMBINATION)},
        files=EXPERIMENTS[1].files,
    ),
    "webshop_16": Experiment(
        "WebShop, 16",
        {
            GRPO: "webshop_long/grpo",
            "RLOO": "webshop_long/rloo",
            GIGPO: "webshop_long/gigpo",
            "GiGPO, `paper`": "webshop_long/gigpo_paper",
            "GiGPO, `page+options`": "webshop_long/gigpo_options",
        },
    ),
    "webshop_60": EXPERIMENTS[3],
    "webshop_100": EXPERIMENTS[4],
    "babyai": EXPERIMENTS[5],
    "babyai_low": EXPERIMENTS[-2],
    "babyai_high": EXPERIMENTS[-1],
    "sokoban_30": Experiment(
        "Sokoban, 30",
        {
            GRPO: "sokoban_text_tiny/grpo",
            "RLOO": "sokoban_text_tiny/rloo",
            GIGPO: "sokoban_text_tiny/gigpo",
            "GiGPO, `paper`": "sokoban_text_tiny/gigpo_paper",
            "SALT over GiGPO, `paper`": "sokoban_text_tiny/salt_paper",
        },
    ),
    "sokoban_60": EXPERIMENTS[7],
    "sokoban_again": Experiment(
        "Sokoban, 60, again",
        {
            "GRPO, 6e-4": "pooled_combined/sokoban_again/grpo_6e-4",
            "GRPO, 2e-4": "pooled_combined/sokoban_again/grpo",
            "GiGPO, 6e-4": "pooled_combined/sokoban_again/gigpo",
            "`graph_values`, 2e-4": "pooled_combined/sokoban_again/graph_values",
            "combination, 6e-4": "pooled_combined/reported/sokoban/combined_lr6e-4",
        },
        files=("temperature_1.json",),
        caveat="no protocol",
    ),
    "frozenlake_plain": EXPERIMENTS[8],
    "frozenlake_slips": EXPERIMENTS[9],
    "muon_frozenlake": Experiment(
        "Muon, FrozenLake",
        {
            "AdamW": "muon/reported/frozenlake/adamw_lr1e-3",
            "Muon": "muon/reported/frozenlake/muon_lr3e-3",
        },
    ),
    "muon_babyai": Experiment(
        "Muon, BabyAI",
        {
            "AdamW": "muon/reported/babyai/adamw_lr1e-3",
            "Muon": "muon/reported/babyai/muon_lr3e-3",
        },
    ),
}
