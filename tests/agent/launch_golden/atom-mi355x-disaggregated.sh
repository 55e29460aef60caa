# ATOM 2026-08-22
# servers take requests of up to 2112 tokens, as this workload sends; raise it for longer
# name the cluster's RDMA devices for the KV hand-off if the engine does not find them

# --- on node0 ---
LMCACHE_LOCAL_CPU=True LMCACHE_MAX_LOCAL_CPU_SIZE=50 MORI_SHMEM_MODE=ISOLATION python3 -m atom.entrypoints.openai_server --model deepseek-ai/DeepSeek-R1 --host 0.0.0.0 --server-port 8100 --tensor-parallel-size 8 --enable-dp-attention --enable-expert-parallel --kv_cache_dtype fp8 --method mtp --num-speculative-tokens 3 --kv-transfer-config '{"kv_connector":"multi","connectors":[{"kv_connector":"moriio","kv_role":"kv_producer","http_port":8100,"handshake_port":20000},{"kv_connector":"lmcache_offload","kv_role":"offload"}]}' --max-model-len 2112 > prefill-0.log 2>&1 &
atomesh launch --host 0.0.0.0 --port 8000 --backend atom --policy round_robin --pd-disaggregation --prefill http://node0:8100 --decode http://node1:8100 > router.log 2>&1 &

# --- on node1 ---
LMCACHE_LOCAL_CPU=True LMCACHE_MAX_LOCAL_CPU_SIZE=50 MORI_SHMEM_MODE=ISOLATION python3 -m atom.entrypoints.openai_server --model deepseek-ai/DeepSeek-R1 --host 0.0.0.0 --server-port 8100 --tensor-parallel-size 8 --enable-dp-attention --enable-expert-parallel --kv_cache_dtype fp8 --method mtp --num-speculative-tokens 3 --kv-transfer-config '{"kv_connector":"multi","connectors":[{"kv_connector":"moriio","kv_role":"kv_consumer","http_port":8100,"handshake_port":20000},{"kv_connector":"lmcache_offload","kv_role":"offload"}]}' --max-model-len 2112 > decode-0.log 2>&1 &

# --- wait until it answers, then compare with the prediction ---
until curl --silent --fail --output /dev/null http://node0:8000/health; do sleep 5; done
vllm bench serve --backend openai --base-url http://node0:8000 --model deepseek-ai/DeepSeek-R1 --dataset-name random --random-input-len 922 --random-output-len 922 --random-range-ratio 0.111111 --num-prompts 640 --max-concurrency 64 --ignore-eos --seed 0 --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,90,99 --save-result --result-filename bench.json
