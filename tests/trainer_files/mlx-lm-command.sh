mlx_lm.lora --model mlx-community/Mistral-7B-Instruct-v0.3-8bit --train --data ./data \
  --batch-size 1 --num-layers 8 --max-seq-length 4096 --grad-checkpoint
