model, tokenizer = FastLanguageModel.from_pretrained(
    model_name="HuggingFaceTB/SmolLM2-1.7B",
    max_seq_length=4096,
    full_finetuning=True,
    use_gradient_checkpointing=False,
)
config = SFTConfig(per_device_train_batch_size=8, gradient_accumulation_steps=1, optim="adamw_torch_fused")
