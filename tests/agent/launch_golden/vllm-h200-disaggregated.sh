# vLLM 0.33.0
# servers take requests of up to 2112 tokens, as this workload sends; raise it for longer
# name the cluster's RDMA devices for the KV hand-off if the engine does not find them

# --- on node0 ---
VLLM_NIXL_SIDE_CHANNEL_HOST=node0 VLLM_NIXL_SIDE_CHANNEL_PORT=20000 vllm serve deepseek-ai/DeepSeek-R1 --host 0.0.0.0 --port 8100 --tensor-parallel-size 8 --enable-expert-parallel --kv-cache-dtype fp8 --all2all-backend deepep_low_latency --max-num-batched-tokens 16384 --kv-transfer-config '{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[{"kv_connector":"NixlConnector","kv_role":"kv_both"},{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":800000000000}}]}}' --max-model-len 2112 > prefill-0.log 2>&1 &
vllm-router --host 0.0.0.0 --port 8000 --policy round_robin --vllm-pd-disaggregation --kv-connector nixl --prefill http://node0:8100 --prefill http://node1:8100 --decode http://node2:8100 > router.log 2>&1 &

# --- on node1 ---
VLLM_NIXL_SIDE_CHANNEL_HOST=node1 VLLM_NIXL_SIDE_CHANNEL_PORT=20000 vllm serve deepseek-ai/DeepSeek-R1 --host 0.0.0.0 --port 8100 --tensor-parallel-size 8 --enable-expert-parallel --kv-cache-dtype fp8 --all2all-backend deepep_low_latency --max-num-batched-tokens 16384 --kv-transfer-config '{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[{"kv_connector":"NixlConnector","kv_role":"kv_both"},{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":800000000000}}]}}' --max-model-len 2112 > prefill-1.log 2>&1 &

# --- on node2 ---
VLLM_NIXL_SIDE_CHANNEL_HOST=node2 VLLM_NIXL_SIDE_CHANNEL_PORT=20000 vllm serve deepseek-ai/DeepSeek-R1 --host 0.0.0.0 --port 8100 --data-parallel-size 16 --enable-expert-parallel --data-parallel-size-local 8 --data-parallel-address node2 --data-parallel-rpc-port 29500 --kv-cache-dtype fp8 --all2all-backend deepep_low_latency --kv-transfer-config '{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[{"kv_connector":"NixlConnector","kv_role":"kv_both"},{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":100000000000}}]}}' --max-model-len 2112 > decode-0.log 2>&1 &

# --- on node3 ---
VLLM_NIXL_SIDE_CHANNEL_HOST=node3 VLLM_NIXL_SIDE_CHANNEL_PORT=20000 vllm serve deepseek-ai/DeepSeek-R1 --headless --data-parallel-size 16 --enable-expert-parallel --data-parallel-size-local 8 --data-parallel-address node2 --data-parallel-rpc-port 29500 --data-parallel-start-rank 8 --kv-cache-dtype fp8 --all2all-backend deepep_low_latency --kv-transfer-config '{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[{"kv_connector":"NixlConnector","kv_role":"kv_both"},{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":100000000000}}]}}' --max-model-len 2112 > decode-0-node1.log 2>&1 &

# --- wait until it answers, then compare with the prediction ---
until curl --silent --fail --output /dev/null http://node0:8000/health; do sleep 5; done
vllm bench serve --backend openai --base-url http://node0:8000 --model deepseek-ai/DeepSeek-R1 --dataset-name random --random-input-len 922 --random-output-len 922 --random-range-ratio 0.111111 --num-prompts 640 --max-concurrency 64 --ignore-eos --seed 0 --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,90,99 --save-result --result-filename bench.json
