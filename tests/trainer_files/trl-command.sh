accelerate launch --config_file examples/accelerate_configs/deepspeed_zero2.yaml --num_processes 8 \
    trl/scripts/sft.py \
    --model_name_or_path Qwen/Qwen3-4B \
    --dataset_name trl-lib/Capybara \
    --dtype bfloat16 \
    --max_length 2048 \
    --per_device_train_batch_size 1 \
    --gradient_accumulation_steps 16 \
    --use_liger_kernel \
    --bf16 True \
    --optim adamw_torch \
    --output_dir out
