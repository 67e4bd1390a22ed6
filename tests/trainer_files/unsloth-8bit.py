model, tokenizer = FastLanguageModel.from_pretrained(
    model_name="google/gemma-2-9b",
    dtype=torch.float16,
    load_in_4bit=False,
    load_in_8bit=True,
)
model = FastLanguageModel.get_peft_model(model, r=8, lora_dropout=0.05, target_modules="all-linear")
