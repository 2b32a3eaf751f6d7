"""The stages that leave a checkpoint, in the order of training."""

BASE_STAGES = ("pretrain", "midtrain", "dsa_warmup", "dsa_adapt")  # no chat was seen yet
RL_STAGES = ("reasoning_rl", "agentic_rl", "general_rl", "distill")
CHECKPOINT_STAGES = (*BASE_STAGES, "sft", *RL_STAGES)
