model, tokenizer = FastLanguageModel.from_pretrained("unsloth/Qwen2.5-7B", max_seq_length=8192, load_in_4bit=False)
model = FastLanguageModel.get_peft_model(
    model, r=64, target_modules=["q_proj", "v_proj"], use_gradient_checkpointing=True, modules_to_save=["lm_head", "embed_tokens"],
)
args = SFTConfig(per_device_train_batch_size=1, optim="paged_adamw_8bit", max_length=4096)
