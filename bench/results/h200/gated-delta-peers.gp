# gnuplot gated-delta-peers.gp
set terminal svg size 1400,520 font "sans,12" background "white"
set output "gated-delta-peers.svg"
set title "Gated delta rule forward on an H200, SM120's limits, exact, mixed gates"
set xlabel "key/value heads; in each the lengths of FlashQLA's list, in its order"
set ylabel "times as long as flashdelta"
set xtics scale 0 ("2/8" 9.0, "4/16" 28.0, "8/32" 47.0, "16/64" 66.0, "16/32" 85.0, "8/24" 104.0, "16/48" 123.0, "16/16" 142.0, "32/32" 161.0)
set xrange [-0.5:170.5]
set logscale y 2
set grid y
set key outside
set arrow from -0.5, graph 0 rto 0, graph 1 nohead lc 'gray'
set arrow from 18.5, graph 0 rto 0, graph 1 nohead lc 'gray'
set arrow from 37.5, graph 0 rto 0, graph 1 nohead lc 'gray'
set arrow from 56.5, graph 0 rto 0, graph 1 nohead lc 'gray'
set arrow from 75.5, graph 0 rto 0, graph 1 nohead lc 'gray'
set arrow from 94.5, graph 0 rto 0, graph 1 nohead lc 'gray'
set arrow from 113.5, graph 0 rto 0, graph 1 nohead lc 'gray'
set arrow from 132.5, graph 0 rto 0, graph 1 nohead lc 'gray'
set arrow from 151.5, graph 0 rto 0, graph 1 nohead lc 'gray'
plot 1 notitle with lines lc "black", \
  "gated-delta-peers.dat" using 0:3 title "flash-linear-attention" with points ps 0.6 pt 9 lc '#bbbbbb', \
  "gated-delta-peers.dat" using 0:4 title "FlashQLA" with points ps 0.6 pt 7 lc '#9fc0e6', \
  "gated-delta-peers.dat" using 0:5 title "FlashQLA, gates known" with points ps 0.6 pt 7 lc '#3b6fb6', \
  "gated-delta-peers.dat" using 0:6 title "FlashQLA, rule of lengths" with points ps 0.6 pt 11 lc '#3b6fb6', \
  "gated-delta-peers.dat" using 0:7 title "FlashInfer" with points ps 0.6 pt 5 lc '#c05020', \
  "gated-delta-peers.dat" using 0:8 title "FlashQLA, published" with points ps 0.6 pt 6 lc '#3b6fb6', \
  "gated-delta-peers.dat" using 0:9 title "FlashInfer, published" with points ps 0.6 pt 4 lc '#c05020'
