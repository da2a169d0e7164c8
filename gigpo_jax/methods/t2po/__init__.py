"""T2PO (arXiv 2605.02178): turns whose uncertainty hardly changes are sampled again."""
