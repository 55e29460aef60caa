# vLLM 0.33.0
# put the path or id of an EAGLE-3 drafter for Llama-3.1-8B in place of DRAFT_MODEL, or give --draft-model
# servers take requests of up to 2112 tokens, as this workload sends; raise it for longer

# --- on 127.0.0.1 ---
CUDA_VISIBLE_DEVICES=0,1 vllm serve meta-llama/Llama-3.1-8B-Instruct --host 0.0.0.0 --port 8100 --tensor-parallel-size 2 --speculative-config '{"method":"eagle3","model":"DRAFT_MODEL","num_speculative_tokens":3}' --max-model-len 2112 > server-0.log 2>&1 &
CUDA_VISIBLE_DEVICES=2,3 vllm serve meta-llama/Llama-3.1-8B-Instruct --host 0.0.0.0 --port 8101 --tensor-parallel-size 2 --speculative-config '{"method":"eagle3","model":"DRAFT_MODEL","num_speculative_tokens":3}' --max-model-len 2112 > server-1.log 2>&1 &
CUDA_VISIBLE_DEVICES=4,5 vllm serve meta-llama/Llama-3.1-8B-Instruct --host 0.0.0.0 --port 8102 --tensor-parallel-size 2 --speculative-config '{"method":"eagle3","model":"DRAFT_MODEL","num_speculative_tokens":3}' --max-model-len 2112 > server-2.log 2>&1 &
CUDA_VISIBLE_DEVICES=6,7 vllm serve meta-llama/Llama-3.1-8B-Instruct --host 0.0.0.0 --port 8103 --tensor-parallel-size 2 --speculative-config '{"method":"eagle3","model":"DRAFT_MODEL","num_speculative_tokens":3}' --max-model-len 2112 > server-3.log 2>&1 &
vllm-router --host 0.0.0.0 --port 8000 --policy round_robin --worker-urls http://127.0.0.1:8100 http://127.0.0.1:8101 http://127.0.0.1:8102 http://127.0.0.1:8103 > router.log 2>&1 &

# --- wait until it answers, then compare with the prediction ---
until curl --silent --fail --output /dev/null http://127.0.0.1:8000/health; do sleep 5; done
vllm bench serve --backend openai --base-url http://127.0.0.1:8000 --model meta-llama/Llama-3.1-8B-Instruct --dataset-name random --random-input-len 922 --random-output-len 922 --random-range-ratio 0.111111 --num-prompts 640 --max-concurrency 64 --ignore-eos --seed 0 --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,90,99 --save-result --result-filename bench.json
