!pip install unsloth
from unsloth import FastModel
from trl import SFTTrainer, SFTConfig

model, tokenizer = FastModel.from_pretrained(
    model_name = "unsloth/Qwen3-4B-unsloth-bnb-4bit",
    max_seq_length = 16384,
    full_finetuning = False,
    # token = "hf_...",
)
model = FastModel.get_peft_model(model, r = 32, lora_alpha = 32, random_state = 3407)
trainer = SFTTrainer(model = model, args = SFTConfig(packing = True, gradient_accumulation_steps = 1, report_to = "none"))
