# ATOM 2026-08-22
# ATOM quantises meta-llama/Llama-3.1-70B-Instruct to ptpc_fp8 while loading; a fp8 checkpoint loads faster
# servers take requests of up to 2112 tokens, as this workload sends; raise it for longer

# --- on 127.0.0.1 ---
HIP_VISIBLE_DEVICES=0,1,2,3 python3 -m atom.entrypoints.openai_server --model meta-llama/Llama-3.1-70B-Instruct --host 0.0.0.0 --server-port 8100 --tensor-parallel-size 4 --online_quant_config '{"global_quant_config":"ptpc_fp8"}' --kv_cache_dtype fp8 --cudagraph-capture-sizes '[1,2,4,8,16,32,48,64]' --no-enable_prefix_caching --max-model-len 2112 > server-0.log 2>&1 &
HIP_VISIBLE_DEVICES=4,5,6,7 python3 -m atom.entrypoints.openai_server --model meta-llama/Llama-3.1-70B-Instruct --host 0.0.0.0 --server-port 8101 --tensor-parallel-size 4 --online_quant_config '{"global_quant_config":"ptpc_fp8"}' --kv_cache_dtype fp8 --cudagraph-capture-sizes '[1,2,4,8,16,32,48,64]' --no-enable_prefix_caching --max-model-len 2112 > server-1.log 2>&1 &
atomesh launch --host 0.0.0.0 --port 8000 --backend atom --policy round_robin --worker-urls http://127.0.0.1:8100 http://127.0.0.1:8101 > router.log 2>&1 &

# --- wait until it answers, then compare with the prediction ---
until curl --silent --fail --output /dev/null http://127.0.0.1:8000/health; do sleep 5; done
vllm bench serve --backend openai --base-url http://127.0.0.1:8000 --model meta-llama/Llama-3.1-70B-Instruct --dataset-name random --random-input-len 922 --random-output-len 922 --random-range-ratio 0.111111 --num-prompts 640 --max-concurrency 64 --ignore-eos --seed 0 --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,90,99 --save-result --result-filename bench.json
