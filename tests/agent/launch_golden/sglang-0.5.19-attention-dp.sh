# SGLang 0.5.19
# SGLang divides its limits by 8: each attention-DP rank gets 1024 prompt tokens and 4096 requests

# --- on 127.0.0.1 ---
python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --host 0.0.0.0 --port 8000 --tp-size 8 --ep-size 8 --dp-size 8 --enable-dp-attention --kv-cache-dtype fp8_e4m3 > server-0.log 2>&1 &

# --- wait until it answers, then compare with the prediction ---
until curl --silent --fail --output /dev/null http://127.0.0.1:8000/health; do sleep 5; done
vllm bench serve --backend openai --base-url http://127.0.0.1:8000 --model deepseek-ai/DeepSeek-R1 --dataset-name random --random-input-len 922 --random-output-len 922 --random-range-ratio 0.111111 --num-prompts 640 --max-concurrency 64 --ignore-eos --seed 0 --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,90,99 --save-result --result-filename bench.json
