# vLLM 0.33.0
# servers take requests of up to 2112 tokens, as this workload sends; raise it for longer

# --- on 127.0.0.1 ---
VLLM_ROCM_USE_AITER=1 VLLM_ROCM_QUICK_REDUCE_QUANTIZATION=FP vllm serve deepseek-ai/DeepSeek-R1 --host 0.0.0.0 --port 8000 --data-parallel-size 8 --enable-expert-parallel --kv-cache-dtype fp8 --moe-backend aiter --all2all-backend mori_low_latency --enable-eplb --eplb-config '{"num_redundant_experts":32}' --compilation-config '{"pass_config":{"fuse_norm_quant":true,"fuse_act_quant":true}}' --max-num-seqs 256 --max-num-batched-tokens 16384 --gpu-memory-utilization 0.9 --max-cudagraph-capture-size 768 --speculative-config '{"method":"mtp","num_speculative_tokens":2}' --max-model-len 2112 > server-0.log 2>&1 &

# --- wait until it answers, then compare with the prediction ---
until curl --silent --fail --output /dev/null http://127.0.0.1:8000/health; do sleep 5; done
vllm bench serve --backend openai --base-url http://127.0.0.1:8000 --model deepseek-ai/DeepSeek-R1 --dataset-name random --random-input-len 922 --random-output-len 922 --random-range-ratio 0.111111 --num-prompts 640 --max-concurrency 64 --ignore-eos --seed 0 --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,90,99 --save-result --result-filename bench.json
