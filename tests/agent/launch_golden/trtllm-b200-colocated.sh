# TensorRT-LLM main-002f3cc3
# put the path or id of a fp8 checkpoint of Llama-3.1-70B in place of CHECKPOINT, or give --checkpoint
# servers take requests of up to 2112 tokens, as this workload sends; raise it for longer

# --- on 127.0.0.1 ---
cat > server.yaml <<'END'
tensor_parallel_size: 4
max_batch_size: 256
max_num_tokens: 8192
max_seq_len: 2112
enable_chunked_prefill: true
kv_cache_config:
  dtype: fp8
cuda_graph_config:
  max_batch_size: 256
  enable_padding: true
END
CUDA_VISIBLE_DEVICES=0,1,2,3 trtllm-serve CHECKPOINT --host 0.0.0.0 --port 8000 --config server.yaml > server-0.log 2>&1 &

# --- wait until it answers, then compare with the prediction ---
until curl --silent --fail --output /dev/null http://127.0.0.1:8000/health; do sleep 5; done
vllm bench serve --backend openai --base-url http://127.0.0.1:8000 --model CHECKPOINT --dataset-name random --random-input-len 922 --random-output-len 922 --random-range-ratio 0.111111 --num-prompts 640 --max-concurrency 64 --ignore-eos --seed 0 --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,90,99 --save-result --result-filename bench.json
